"""L2-Net, the network of HardNet and of most methods here, and HyNet's variant of it.

Both have seven convolutions: six with 32-32-64-64-128-128 channels, and a last one that covers the
whole feature map. L2-Net standardises the patch and uses batch normalisation and ReLU. HyNet uses
filter response normalisation (FRN) and thresholded linear units (TLU), also on the raw patch.
"""

from __future__ import annotations

from torch import nn

from training.networks.layers import (
    BatchNorm,
    DescriptorNet,
    FilterResponseNorm,
    Head,
    Scale,
    SpanningConv,
    Standardise,
    ThresholdedLinear,
    conv_norm_relu,
    orthogonal_,
)

_CHANNELS = (32, 32, 64, 64, 128, 128)
_STRIDES = (1, 1, 2, 1, 2, 1)


def l2net(
    *, dim: int, head: Head, width: float, dropout: float, patch_size: int = 32
) -> DescriptorNet:
    """Build L2-Net; `width` multiplies all channels but the last."""
    layers: list[nn.Module] = [Standardise()]
    channels = 1
    for wide, stride in zip(_CHANNELS, _STRIDES, strict=True):
        layers += conv_norm_relu(channels, round(wide * width), 3, stride)
        channels = round(wide * width)
    layers += last_layers(channels, dim, -(-patch_size // 4), head=head, dropout=dropout)
    net = DescriptorNet(nn.Sequential(*layers), dim=dim, head=head, patch_size=patch_size)
    orthogonal_(net)
    return net


def hynet(
    *, dim: int, head: Head, width: float, dropout: float, patch_size: int = 32
) -> DescriptorNet:
    """Build the network of HyNet and SDGMNet, with torch's default initialisation."""
    layers: list[nn.Module] = [Scale(), FilterResponseNorm(1), ThresholdedLinear(1)]
    channels = 1
    for wide, stride in zip(_CHANNELS, _STRIDES, strict=True):
        out = round(wide * width)
        layers += [
            nn.Conv2d(channels, out, 3, stride, 1),
            FilterResponseNorm(out),
            ThresholdedLinear(out),
        ]
        channels = out
    layers += last_layers(channels, dim, -(-patch_size // 4), head=head, dropout=dropout)
    return DescriptorNet(nn.Sequential(*layers), dim=dim, head=head, patch_size=patch_size)


def last_layers(
    channels: int, dim: int, side: int, *, head: Head, dropout: float
) -> list[nn.Module]:
    """Return dropout, the convolution that covers the whole map, and its batch normalisation.

    A linear head has a bias instead of the normalisation, which would fix the scale of the
    descriptors; losses of plain distances must be free to choose it.
    """
    is_linear = head == "linear"
    conv = SpanningConv(channels, dim, side, bias=is_linear)
    return [nn.Dropout(dropout), conv] + ([] if is_linear else [BatchNorm(dim)])
