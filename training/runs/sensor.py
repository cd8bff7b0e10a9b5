"""Changes of patches as by other light or another sensor, drawn for each patch.

All functions take and return patches (M, 1, S, S) with grey levels 0..255.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor
from torch.nn import functional

BLUR_SIGMA = 1.5
_BLUR_REACH = 4
_SHADING_CELLS = 4
_CURVE_KNOTS = 6


def blurred(patches: Tensor, limit: float, rng: Generator) -> Tensor:
    """Mix each patch with a copy of itself, blurred by `BLUR_SIGMA` samples."""
    at = torch.arange(-_BLUR_REACH, _BLUR_REACH + 1, dtype=torch.float32)
    kernel = torch.exp(-0.5 * (at / BLUR_SIGMA) ** 2)
    kernel = kernel / kernel.sum()
    wide = functional.pad(patches, [_BLUR_REACH] * 4, mode="replicate")
    soft = functional.conv2d(wide, kernel.view(1, 1, 1, -1))
    soft = functional.conv2d(soft, kernel.view(1, 1, -1, 1))
    return patches + _drawn(rng, len(patches), limit) * (soft - patches)


def shaded(patches: Tensor, strength: float, rng: Generator) -> Tensor:
    """Multiply each patch with a smooth field of exposure factors."""
    count, side = len(patches), patches.shape[-1]
    cells = rng.standard_normal((count, 1, _SHADING_CELLS, _SHADING_CELLS), np.float32)
    field = functional.interpolate(
        torch.from_numpy(cells), size=(side, side), mode="bicubic", align_corners=True
    )
    amount = _drawn(rng, count, strength)
    return (patches * torch.exp(amount * field)).clamp(0.0, 255.0)


def curved(patches: Tensor, limit: float, rng: Generator) -> Tensor:
    """Mix each patch with itself seen through a random piecewise linear tone curve.

    The curve spans the range of grey levels of the patch and may rise and fall.
    """
    count = len(patches)
    low = patches.amin(dim=(2, 3), keepdim=True)
    span = (patches.amax(dim=(2, 3), keepdim=True) - low).clamp_min(1.0)
    knots = torch.from_numpy(rng.random((count, _CURVE_KNOTS), np.float32))
    place = ((patches - low) / span * (_CURVE_KNOTS - 1)).flatten(1)
    left = place.floor().clamp(0, _CURVE_KNOTS - 2).long()
    before, after = knots.gather(1, left), knots.gather(1, left + 1)
    bent = (before + (place - left) * (after - before)).view_as(patches) * span + low
    return patches + _drawn(rng, count, limit) * (bent - patches)


def inverted(patches: Tensor, probability: float, rng: Generator) -> Tensor:
    """Exchange dark and bright of some patches."""
    is_inverted = torch.from_numpy(rng.random((len(patches), 1, 1, 1)) < probability)
    return torch.where(is_inverted, 255.0 - patches, patches)


def _drawn(rng: Generator, count: int, limit: float) -> Tensor:
    """Draw an amount between 0 and `limit` for each patch."""
    return torch.from_numpy(rng.uniform(0.0, limit, (count, 1, 1, 1)).astype(np.float32))
