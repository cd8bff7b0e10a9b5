"""The base class of descriptor networks, and the layers that they are built from."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.runtime import distributed

Head = Literal["unit", "binary", "linear"]


class DescriptorNet(nn.Module):
    """Computes descriptors (N, dim) of patches (N, 1, S, S), 0..255 of any dtype.

    `features` are the outputs of the last layer; `forward` applies the head to them. The head
    `unit` scales them to length 1, `binary` gives codes in (-1, 1) whose signs are the bits, and
    `linear` leaves them unchanged.
    """

    def __init__(self, trunk: nn.Sequential, *, dim: int, head: Head, patch_size: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.dim, self.head, self.patch_size = dim, head, patch_size

    def features(self, patches: Tensor) -> Tensor:
        """Return the outputs before the head, (N, dim)."""
        output: Tensor = self.trunk(patches.to(torch.get_default_dtype()))
        return output.flatten(1)

    def apply_head(self, features: Tensor) -> Tensor:
        """Turn features into descriptors."""
        if self.head == "unit":
            return functional.normalize(features, dim=1, eps=1e-12)
        return torch.tanh(features) if self.head == "binary" else features

    def forward(self, patches: Tensor) -> Tensor:
        """Return the descriptors of `patches`."""
        return self.apply_head(self.features(patches))


class Standardise(nn.Module):
    """Scales each patch to mean 0 and sample standard deviation 1; these have no gradient."""

    def forward(self, patches: Tensor) -> Tensor:
        """Standardise (N, 1, S, S)."""
        count = patches.shape[-1] * patches.shape[-2]
        with torch.no_grad():
            mean = patches.mean((1, 2, 3), keepdim=True)
        centred = patches - mean
        with torch.no_grad():
            variance = (centred * centred).sum((1, 2, 3), keepdim=True) / (count - 1)
        return centred / (variance.sqrt() + 1e-7)


class CentreAndSurround(Standardise):
    """Makes two patches of one: its middle half, and the whole at half the size; standardises both.

    The two are rows 2 i and 2 i + 1 of the batch. The following layers treat both alike, and a
    `SpanningConv` with twice the channels reads them together.
    """

    def forward(self, patches: Tensor) -> Tensor:
        """Return (2 N, 1, S / 2, S / 2) of (N, 1, S, S)."""
        half, quarter = patches.shape[-1] // 2, patches.shape[-1] // 4
        middle = patches[..., quarter : quarter + half, quarter : quarter + half]
        whole = functional.avg_pool2d(patches, 2)
        return super().forward(torch.cat([middle, whole], 1).reshape(-1, 1, half, half))


class Scale(nn.Module):
    """Scales grey levels from 0..255 to 0..1."""

    def forward(self, patches: Tensor) -> Tensor:
        """Divide by 255."""
        return patches / 255.0


class SpanningConv(nn.Conv2d):
    """A convolution whose kernel covers the whole feature map, computed as a matrix product.

    That is faster, in training and in service: a convolution reads its weights again for every
    patch. If it has twice the channels of a map, it reads two neighbouring maps of the batch.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Return (N, C', 1, 1) of (N, C, S, S)."""
        if maps.shape[2:] != self.weight.shape[2:] or self.weight.shape[1] % maps.shape[1]:
            given, own = tuple(maps.shape[1:]), tuple(self.weight.shape[1:])
            raise ValueError(f"weights of shape {own} do not cover a feature map of shape {given}")
        spanned = maps.reshape(-1, self.weight[0].numel())
        rows = functional.linear(spanned, self.weight.flatten(1), self.bias)
        return rows[:, :, None, None]


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation without affine parameters, with statistics of all processes' batch."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, affine=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Normalise (N, C, H, W) per channel."""
        if self.training and distributed.world_size() > 1:
            return self._over_processes(rows)
        return super().forward(rows)

    def _over_processes(self, rows: Tensor) -> Tensor:
        # torch's SyncBatchNorm needs CUDA; two sums give the same result on any device.
        count = rows.numel() // rows.shape[1] * distributed.world_size()
        mean = distributed.sum_over_processes(rows.sum((0, 2, 3))) / count
        centred = rows - mean[:, None, None]
        variance = distributed.sum_over_processes((centred * centred).sum((0, 2, 3))) / count
        running_mean, running_var = self.running_mean, self.running_var
        if running_mean is not None and running_var is not None:
            rate = self.momentum or 0.0
            with torch.no_grad():
                running_mean.lerp_(mean, rate)
                running_var.lerp_(variance * count / (count - 1), rate)
        return centred * torch.rsqrt(variance + self.eps)[:, None, None]


class FilterResponseNorm(nn.Module):
    """FRN: divides each map by its root mean square, then scales and shifts it per channel.

    Epsilon is fixed: HyNet's code has a learned variant, which is switched off.
    """

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.eps = eps

    def forward(self, maps: Tensor) -> Tensor:
        """Normalise (N, C, H, W)."""
        power = (maps * maps).mean((2, 3), keepdim=True)
        return self.gamma * (maps * torch.rsqrt(power + self.eps)) + self.beta


class ThresholdedLinear(nn.Module):
    """TLU: max(x, tau) with one learned tau per channel, initially -1."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.tau = nn.Parameter(torch.full((1, channels, 1, 1), -1.0))

    def forward(self, maps: Tensor) -> Tensor:
        """Apply the threshold to (N, C, H, W)."""
        return torch.maximum(maps, self.tau)


def conv_padding(kernel: int, stride: int) -> int:
    """Return the padding of a convolution: half the kernel, or 0 if its windows do not overlap."""
    return kernel // 2 if stride < kernel else 0


def side_after(side: int, kernel: int, stride: int) -> int:
    """Return the side of the feature map after a convolution of a map of `side`."""
    return (side + 2 * conv_padding(kernel, stride) - kernel) // stride + 1


def conv_norm_relu(
    channels_in: int, channels_out: int, kernel: int, stride: int
) -> list[nn.Module]:
    """Return a convolution without bias, batch normalisation and ReLU."""
    padding = conv_padding(kernel, stride)
    conv = nn.Conv2d(channels_in, channels_out, kernel, stride, padding, bias=False)
    return [conv, BatchNorm(channels_out), nn.ReLU(inplace=True)]


def orthogonal_(net: nn.Module, gain: float = 0.6) -> None:
    """Initialise every convolution orthogonally, as L2-Net and HardNet do."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.orthogonal_(module.weight, gain)
            if module.bias is not None:
                nn.init.constant_(module.bias, 0.01)
