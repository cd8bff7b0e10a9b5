"""Average the descriptors of two domain sizes of a keypoint (DSP-SIFT, Dong and Soatto, 2015).

The scale of a detected keypoint is uncertain. A descriptor that is averaged over patches of several
sizes depends less on it, for any network and without training. The model takes the larger patch.
The network describes its middle, which is the patch that it was trained on, and the whole patch
reduced to the same size.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from matchserve.types import PatchSpec


class TwoDomains(nn.Module):
    """Makes two patches of `inner` samples from one of `outer`: its middle, and the whole reduced.

    The two are rows 2 i and 2 i + 1 of the batch.
    """

    reduction: Tensor

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.inner, self.margin = inner, (outer - inner) // 2
        # Resampling is linear and separable: two matrix products do it in any ONNX runtime.
        every_sample = torch.eye(outer)[None, None]
        rows = functional.interpolate(every_sample, (inner, outer), mode="bilinear", antialias=True)
        self.register_buffer("reduction", rows[0, 0], persistent=False)

    def forward(self, patches: Tensor) -> Tensor:
        """Return (2 N, 1, inner, inner) of (N, 1, outer, outer)."""
        inside = slice(self.margin, self.margin + self.inner)
        middle = patches[..., inside, inside]
        whole = self.reduction @ patches @ self.reduction.T
        return torch.cat([middle, whole], 1).reshape(-1, 1, self.inner, self.inner)


def mean_of_domains(rows: Tensor) -> Tensor:
    """Return the means (N, dim) of neighbouring unit rows (2 N, dim); their length is below 1."""
    return rows.reshape(-1, 2, rows.shape[1]).mean(1)


def wider(spec: PatchSpec, ratio: float) -> PatchSpec:
    """Return the crop about `ratio` times as large as `spec`, with `spec` exactly in its middle."""
    side = spec.size + 2 * round(spec.size * (ratio - 1) / 2)
    return replace(spec, size=side, magnification=spec.magnification * side / spec.size)
