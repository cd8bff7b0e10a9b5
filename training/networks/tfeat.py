"""TFeat (Balntas et al. 2016): two convolutions with tanh, and one linear layer."""

from __future__ import annotations

from torch import nn

from training.networks.layers import DescriptorNet, Head, Standardise


def tfeat(
    *, dim: int, head: Head, width: float, dropout: float, patch_size: int = 32
) -> DescriptorNet:
    """Build TFeat; `width` multiplies the channels of both convolutions."""
    narrow, wide = round(32 * width), round(64 * width)
    # 7 x 7 without padding, pooling by two, 6 x 6 without padding.
    side = (patch_size - 6) // 2 - 5
    trunk = nn.Sequential(
        Standardise(),
        nn.Conv2d(1, narrow, 7),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(narrow, wide, 6),
        nn.Tanh(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(wide * side * side, dim),
        nn.Tanh(),
    )
    return DescriptorNet(trunk, dim=dim, head=head, patch_size=patch_size)
