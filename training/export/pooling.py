"""Average the descriptors of several domain sizes of a keypoint (DSP-SIFT, Dong and Soatto, 2015).

The scale of a detected keypoint is uncertain. A descriptor that is averaged over patches of several
sizes depends less on it, for any network and without training. The model takes the largest patch.
The network describes its middle, which is the patch that it was trained on, and every other domain
resampled to the same size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from matchserve.errors import InvalidParameter
from matchserve.types import PatchSpec
from training.errors import ExportRefused
from training.networks.published import DOMAIN_ENTRY, DOMAINS_ENTRY


class Domains(nn.Module):
    """Makes a patch of `sides[0]` samples from each of the domains `sides` of a larger patch.

    The middle `sides[i]` samples, resampled, are row `i` of each group of `len(sides)` rows.
    """

    def __init__(self, sides: Sequence[int]) -> None:
        super().__init__()
        self.sides = tuple(sides)
        # Resampling is linear and separable: two matrix products do it in any ONNX runtime.
        for side in self.sides[1:]:
            every_sample = torch.eye(side)[None, None]
            rows = functional.interpolate(
                every_sample, (self.sides[0], side), mode="bilinear", antialias=True
            )
            self.register_buffer(_resampling(side), rows[0, 0], persistent=False)

    def forward(self, patches: Tensor) -> Tensor:
        """Return (K N, 1, inner, inner) of (N, 1, outer, outer) for K domain sizes."""
        parts = [middle(patches, self.sides[0])]
        for side in self.sides[1:]:
            resampling = self.get_buffer(_resampling(side))
            parts.append(resampling @ middle(patches, side) @ resampling.T)
        return torch.cat(parts, 1).reshape(-1, 1, self.sides[0], self.sides[0])


def middle(patches: Tensor, side: int) -> Tensor:
    """Return the middle `side` x `side` samples of patches (..., S, S)."""
    margin = (patches.shape[-1] - side) // 2
    inside = slice(margin, margin + side)
    return patches[..., inside, inside]


def mean_of_domains(rows: Tensor, count: int) -> Tensor:
    """Return the means (N, dim) of `count` successive unit rows each; their length is below 1."""
    return rows.reshape(-1, count, rows.shape[1]).mean(1)


def wider(spec: PatchSpec, ratio: float) -> PatchSpec:
    """Return the crop about `ratio` times as large as `spec`, with the same centre and step."""
    side = spec.size + 2 * round(spec.size * (ratio - 1) / 2)
    return replace(spec, size=side, magnification=spec.magnification * side / spec.size)


def domains_of(spec: PatchSpec, ratios: Sequence[float]) -> tuple[PatchSpec, tuple[int, ...]]:
    """Return the crop with the widest domain, and the sides of all domains in samples, own first.

    Raises:
        ExportRefused: the crop is not legal, or two domains would have the same side.
    """
    crops = [spec]
    for ratio in sorted(ratios):
        try:
            crops.append(wider(spec, ratio))
        except InvalidParameter as error:
            raise ExportRefused(f"a domain size of {ratio:g} is not possible: {error}") from error
        if crops[-1].size in [crop.size for crop in crops[:-1]]:
            raise ExportRefused(
                f"a domain size of {ratio:g} gives {crops[-1].size} samples, as another one does"
            )
    return max(crops, key=lambda crop: crop.size), tuple(crop.size for crop in crops)


def domain_entries(sides: Sequence[int]) -> dict[str, Any]:
    """Return what the card's recipe says of these domain sizes."""
    ratios = [side / sides[0] for side in sides]
    several = {DOMAINS_ENTRY: sorted(ratios)} if len(ratios) > 2 else {}
    return {DOMAIN_ENTRY: max(ratios), **several}


def _resampling(side: int) -> str:
    return f"resampling{side}"
