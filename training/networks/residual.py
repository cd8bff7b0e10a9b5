"""The residual network of the stochastic loss (Serajeh et al., Table 1).

Eleven convolutions with decreasing kernel size, three average poolings, and one linear layer on the
flattened 4 x 4 map; no normalisation, neither inside nor at the end. docs/research/methods.md lists
how this code reads what the table leaves open.
"""

from __future__ import annotations

import math
from typing import cast

from torch import Tensor, nn

from training.networks.layers import DescriptorNet, Head, Standardise

# Puts the initial distance of two different patches near 3, the target of the Siamese loss. With
# plain He initialisation it is 12 to 22, and the first gradients make the weights infinite.
_LAST_GAIN = 0.4


class _Same(nn.Sequential):
    """A convolution that keeps the size; an even kernel pads one zero more right and below."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int) -> None:
        before, after = (kernel - 1) // 2, kernel // 2
        pad = nn.ZeroPad2d((before, after, before, after))
        conv = nn.Conv2d(channels_in, channels_out, kernel)
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        nn.init.zeros_(cast(Tensor, conv.bias))
        super().__init__(pad, conv)


class _Block(nn.Module):
    """Residual block: relu(x + conv(relu(conv(x)))), initially the identity."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.first = _Same(channels, channels, kernel)
        self.second = _Same(channels, channels, kernel)
        # Without normalisation, four random blocks multiply the variance of the maps by 16.
        nn.init.zeros_(cast(nn.Conv2d, self.second[1]).weight)
        self.relu = nn.ReLU()

    def forward(self, maps: Tensor) -> Tensor:
        inner: Tensor = self.second(self.relu(self.first(maps)))
        result: Tensor = self.relu(maps + inner)
        return result


def residual(
    *, dim: int, head: Head, width: float, dropout: float, patch_size: int = 32
) -> DescriptorNet:
    """Build the residual network; `width` multiplies all channels but the last."""
    narrow, middle, wide = (round(c * width) for c in (32, 64, 128))
    side = patch_size // 8
    linear = nn.Linear(wide * side * side, dim)
    nn.init.normal_(linear.weight, std=_LAST_GAIN / math.sqrt(linear.in_features))
    nn.init.zeros_(linear.bias)
    trunk = nn.Sequential(
        Standardise(),
        _Same(1, narrow, 7),
        nn.ReLU(),
        _Block(narrow, 6),
        _Same(narrow, middle, 6),
        nn.ReLU(),
        nn.AvgPool2d(2),
        _Block(middle, 5),
        nn.AvgPool2d(2),
        _Block(middle, 4),
        _Same(middle, wide, 4),
        nn.ReLU(),
        nn.AvgPool2d(2),
        _Block(wide, 3),
        nn.Flatten(),
        nn.Dropout(dropout),
        linear,
    )
    return DescriptorNet(trunk, dim=dim, head=head, patch_size=patch_size)
