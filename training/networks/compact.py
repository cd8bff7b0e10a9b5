"""Networks for CPUs: few channels, dense convolutions, small feature maps.

On a CPU the arithmetic is the cost, and dense 3 x 3 convolutions on 8 x 8 maps are almost as fast
as matrix products. The first layers therefore reduce the patch to 8 x 8 quickly: in one convolution
without overlap ("patchify"), or in two strided ones, which overlap and cost little more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Protocol

from torch import nn

from training.errors import RecipeError
from training.networks.l2net import last_layers
from training.networks.layers import (
    CentreAndSurround,
    DescriptorNet,
    Head,
    Standardise,
    conv_norm_relu,
    orthogonal_,
    side_after,
)


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution followed by batch normalisation and ReLU."""

    channels: int
    kernel: int = 3
    stride: int = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """A compact network: its convolutions, then average pooling by `pool`, then the last layers.

    With `has_surround` the convolutions are applied to the middle half of the patch and, with the
    same weights, to the whole patch at half the size; the last layer reads both (Zagoruyko and
    Komodakis, 2015, who give the two their own weights).
    """

    convs: tuple[Conv, ...]
    pool: int = 1
    has_surround: bool = False


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        # 3.10 MMAC
        "patchify48": Shape((Conv(48, 4, 4), *[Conv(48)] * 2)),
        # 7.67 MMAC
        "patchify64": Shape((Conv(64, 4, 4), *[Conv(64)] * 3)),
        # 3.56 MMAC
        "compact40": Shape((Conv(16, 5, 2), Conv(40, 3, 2), *[Conv(40)] * 3)),
        # 4.92 MMAC
        "compact48": Shape((Conv(16, 5, 2), Conv(48, 3, 2), *[Conv(48)] * 3)),
        # 8.64 MMAC
        "compact64": Shape((Conv(24, 5, 2), Conv(64, 3, 2), *[Conv(64)] * 3)),
        # 7.13 MMAC for patches of 64 x 64
        "surround40": Shape((Conv(16, 5, 2), Conv(40, 3, 2), *[Conv(40)] * 3), has_surround=True),
        # 2.97 MMAC for patches of 48 x 48
        "surround40-short": Shape(
            (Conv(16, 5, 2), Conv(40, 3, 2), *[Conv(40)] * 2), has_surround=True
        ),
        # 2.07 MMAC for patches of 48 x 48; 32 channels are four AVX registers of eight floats
        "surround32-short": Shape(
            (Conv(16, 5, 2), Conv(32, 3, 2), *[Conv(32)] * 2), has_surround=True
        ),
        # 4.89 MMAC
        "slim": Shape((Conv(16, 3, 2), Conv(32), Conv(64, 3, 2), Conv(64)), pool=2),
    }
)


class Builder(Protocol):
    """Builds a network of one architecture."""

    def __call__(
        self, *, dim: int, head: Head, width: float, dropout: float, patch_size: int = 32
    ) -> DescriptorNet:
        """Return a freshly initialised network."""
        ...


def compact(
    shape: Shape, *, dim: int, head: Head, width: float, dropout: float, patch_size: int = 32
) -> DescriptorNet:
    """Build a network of `shape`; `width` multiplies all channels but the last.

    Raises:
        RecipeError: a network with a surround needs a patch size divisible by 4.
    """
    if shape.has_surround and patch_size % 4:
        raise RecipeError(f"a surround network needs a patch size divisible by 4, not {patch_size}")
    layers: list[nn.Module] = [CentreAndSurround() if shape.has_surround else Standardise()]
    channels, side = 1, patch_size // 2 if shape.has_surround else patch_size
    for conv in shape.convs:
        out = round(conv.channels * width)
        layers += conv_norm_relu(channels, out, conv.kernel, conv.stride)
        channels, side = out, side_after(side, conv.kernel, conv.stride)
    if shape.pool > 1:
        layers.append(nn.AvgPool2d(shape.pool))
    if shape.has_surround:
        channels *= 2
    layers += last_layers(channels, dim, side // shape.pool, head=head, dropout=dropout)
    net = DescriptorNet(nn.Sequential(*layers), dim=dim, head=head, patch_size=patch_size)
    orthogonal_(net)
    return net


def builders() -> dict[str, Builder]:
    """Return a builder for each shape."""
    return {name: partial(compact, shape) for name, shape in SHAPES.items()}
