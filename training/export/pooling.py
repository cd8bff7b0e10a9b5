"""One keypoint described at two sizes, and the mean of both (Dong and Soatto, DSP-SIFT, 2015).

A detector's scale is a guess. A descriptor averaged over domains of several sizes depends on it
less, whatever network it is of, and needs no training. The patch that is cut is that of the larger
domain; the network sees its middle, cut as it was trained, and all of it reduced to that size.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from matchserve.types import PatchSpec


class TwoDomains(nn.Module):
    """Patches of `outer` samples to their middle of `inner`, and to all of it in as many.

    The two are neighbours in the batch, 2 i and 2 i + 1.
    """

    reduction: Tensor

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.inner, self.margin = inner, (outer - inner) // 2
        # Resampling is linear and separable: a matrix on either side does it in any runtime.
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
    """The mean of unit rows (2 N, dim) that are neighbours, (N, dim); not of length 1."""
    return rows.reshape(-1, 2, rows.shape[1]).mean(1)


def wider(spec: PatchSpec, ratio: float) -> PatchSpec:
    """The crop whose middle is that of `spec`, `ratio` times as large or as near as samples go."""
    side = spec.size + 2 * round(spec.size * (ratio - 1) / 2)
    return replace(spec, size=side, magnification=spec.magnification * side / spec.size)
