"""A small network that returns the logarithm of the score of each pixel of an image.

As in Key.Net (Barroso-Laguna et al. 2019), products of Gaussian derivatives of the image are the
input of a few convolutions. The network is made for speed: all maps have 16 channels, which fill
the vectors of a processor, and the fixed filters are two convolutions, whose results are
multiplied.
"""

from __future__ import annotations

import copy
from typing import Annotated, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from matchserve.types import Float64
from training.recipes.options import Options

BORDER = 8
"""Scores this near to the border of an image depend on the zeros that pad the maps inside."""
_CHANNELS = 16
_TAPS = 7
_COARSE_SIGMA, _FINE_SIGMA = 1.2, 0.7
_BOX = 13  # side of a box that is applied twice: a window of sigma 5.3
_EPSILON = 6.0  # grey levels


class NetworkOptions(Options):
    """The learned part: `layers` convolutions of 3 x 3 with `width` filters, then one of 1 x 1."""

    width: Annotated[int, Field(ge=1, le=64)] = 16
    layers: Annotated[int, Field(ge=1, le=4)] = 2


class ScoreNetwork(nn.Module):
    """Scores every pixel; far from the border a score depends on pixels up to 17 away."""

    derivatives: Tensor
    factors: Tensor
    is_product: Tensor

    def __init__(self, options: NetworkOptions | None = None) -> None:
        super().__init__()
        options = options or NetworkOptions()
        filters, factors, offset = _products()
        self.register_buffer("derivatives", filters)
        self.register_buffer("factors", factors)
        self.register_buffer("is_product", offset)
        layers: list[nn.Module] = []
        channels = _CHANNELS
        for _ in range(options.layers):
            conv = nn.Conv2d(channels, options.width, 3, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(options.width), nn.ReLU()]
            channels = options.width
        self.layers = nn.Sequential(*layers, nn.Conv2d(channels, 1, 1))

    def forward(self, level: Tensor) -> Tensor:
        """Score images (N, 1, H, W) with grey values of 0 to 255; the scores have their shape."""
        return cast(Tensor, self.layers(self.features(level)))

    def features(self, level: Tensor) -> Tensor:
        """Return derivatives and their products (N, 16, H, W), of equal local contrast."""
        # About zero, so that the difference of the squares has more correct digits.
        level = level - 128.0
        mean = _window_mean(level)
        variance = _window_mean(level * level) - mean * mean
        contrast = variance.clamp_min(0.0).sqrt() + _EPSILON
        normal = (level - mean) / contrast
        found = functional.conv2d(normal, self.derivatives, padding=_TAPS // 2)
        return found * functional.conv2d(found, self.factors, self.is_product)


def folded(net: ScoreNetwork) -> ScoreNetwork:
    """Return a copy for inference, with the batch normalisations folded into the convolutions."""
    result = copy.deepcopy(net).eval()
    layers: list[nn.Module] = []
    for layer in result.layers:
        if isinstance(layer, nn.BatchNorm2d):
            layers[-1] = fuse_conv_bn_eval(cast(nn.Conv2d, layers[-1]), layer)
        else:
            layers.append(layer)
    result.layers = nn.Sequential(*layers)
    return result


def _window_mean(values: Tensor) -> Tensor:
    """Return the weighted mean of a window around each pixel: two boxes, of rows and columns."""
    reach = _BOX // 2
    for _ in range(2):
        for size, pad in (((1, _BOX), (0, reach)), ((_BOX, 1), (reach, 0))):
            values = functional.avg_pool2d(values, size, 1, pad, count_include_pad=False)
    return values


def _products() -> tuple[Tensor, Tensor, Tensor]:
    """Return filters, and weights and biases of the factors that their results are multiplied by.

    A feature is a derivative times one, or times another derivative or itself.
    """
    coarse, fine = _derivatives(_COARSE_SIGMA), _derivatives(_FINE_SIGMA)
    names = ("x", "y", "xx", "yy", "xy")
    rows: list[tuple[Float64, int | None]] = [(coarse[name], None) for name in names]
    rows += [(coarse[a], names.index(b)) for a, b in (*_SQUARES, ("xx", "yy"), ("xy", "xy"))]
    first_fine = len(rows)
    rows += [(fine[name], None) for name in ("xx", "yy", "xy")]
    # dx * dx, dy * dy and dx * dy: the second factor is the filter of the same or the next row.
    at = first_fine + 3
    rows += [(fine["x"], at), (fine["y"], at + 1), (fine["x"], at + 1)]
    filters = np.stack([row for row, _ in rows])[:, None]
    factors, offset = np.zeros((_CHANNELS, _CHANNELS, 1, 1)), np.zeros(_CHANNELS)
    for row, (_, other) in enumerate(rows):
        if other is None:
            offset[row] = 1.0
        else:
            factors[row, other] = 1.0
    made = [torch.tensor(each, dtype=torch.float32) for each in (filters, factors, offset)]
    return made[0], made[1], made[2]


_SQUARES = (("x", "x"), ("y", "y"), ("x", "y"))


def _derivatives(sigma: float) -> dict[str, Float64]:
    """Return Gaussian derivative filters, multiplied by sigma once for each derivative."""
    x = np.arange(-(_TAPS // 2), _TAPS // 2 + 1)
    smooth = np.exp(-(x**2) / (2 * sigma**2))
    smooth /= smooth.sum()
    first = -x / sigma * smooth
    second = (x**2 / sigma**2 - 1) * smooth
    second -= second.sum() * smooth
    return {
        "x": np.outer(smooth, first),
        "y": np.outer(first, smooth),
        "xx": np.outer(smooth, second),
        "yy": np.outer(second, smooth),
        "xy": np.outer(first, first),
    }
