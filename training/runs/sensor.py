"""Changes of patches as by other light or another sensor, drawn for each patch.

All functions take and return patches (M, 1, S, S) with grey levels 0..255, on any device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor
from torch.nn import functional

BLUR_SIGMA = 1.5
_BLUR_REACH = 4
_SHADING_CELLS = 4
_CURVE_KNOTS = 6


@dataclass(frozen=True, slots=True, eq=False)
class SensorChanges:
    """What is drawn for M patches; None where nothing changes.

    `blur`, `shading` and `curve` are amounts (M, 1, 1, 1); `cells` (M, 1, 4, 4) is the coarse field
    of the shading, `knots` (M, 6) the tone curve, `is_inverted` (M, 1, 1, 1) a flag.
    """

    blur: Tensor | None = None
    cells: Tensor | None = None
    shading: Tensor | None = None
    knots: Tensor | None = None
    curve: Tensor | None = None
    is_inverted: Tensor | None = None


def draw_sensor(
    count: int,
    own: slice,
    rng: Generator,
    *,
    blur: float = 0.0,
    shading: float = 0.0,
    curve: float = 0.0,
    invert: float = 0.0,
) -> SensorChanges:
    """Draw the changes of `count` patches, with the limits of `AugmentOptions`; return `own`."""

    def amount(limit: float) -> Tensor:
        return torch.from_numpy(rng.uniform(0.0, limit, (count, 1, 1, 1))[own].astype(np.float32))

    drawn: dict[str, Tensor] = {}
    if blur:
        drawn["blur"] = amount(blur)
    if shading:
        cells = rng.standard_normal((count, 1, _SHADING_CELLS, _SHADING_CELLS), np.float32)
        drawn["cells"] = torch.from_numpy(cells[own])
        drawn["shading"] = amount(shading)
    if curve:
        drawn["knots"] = torch.from_numpy(rng.random((count, _CURVE_KNOTS), np.float32)[own])
        drawn["curve"] = amount(curve)
    if invert:
        drawn["is_inverted"] = torch.from_numpy((rng.random((count, 1, 1, 1)) < invert)[own])
    return SensorChanges(**drawn)


def change_sensor(patches: Tensor, changes: SensorChanges) -> Tensor:
    """Blur, shade, bend and invert each patch."""
    device, result = patches.device, patches
    if changes.blur is not None:
        result = blurred(result, changes.blur.to(device))
    if changes.cells is not None and changes.shading is not None:
        result = shaded(result, changes.cells.to(device), changes.shading.to(device))
    if changes.knots is not None and changes.curve is not None:
        result = curved(result, changes.knots.to(device), changes.curve.to(device))
    if changes.is_inverted is not None:
        result = torch.where(changes.is_inverted.to(device), 255.0 - result, result)
    return result


def blurred(patches: Tensor, amount: Tensor) -> Tensor:
    """Mix each patch with a copy of itself, blurred by `BLUR_SIGMA` samples."""
    at = torch.arange(-_BLUR_REACH, _BLUR_REACH + 1, dtype=torch.float32, device=patches.device)
    kernel = torch.exp(-0.5 * (at / BLUR_SIGMA) ** 2)
    kernel = kernel / kernel.sum()
    wide = functional.pad(patches, [_BLUR_REACH] * 4, mode="replicate")
    soft = functional.conv2d(wide, kernel.view(1, 1, 1, -1))
    soft = functional.conv2d(soft, kernel.view(1, 1, -1, 1))
    return patches + amount * (soft - patches)


def shaded(patches: Tensor, cells: Tensor, amount: Tensor) -> Tensor:
    """Multiply each patch with a smooth field of exposure factors."""
    side = patches.shape[-1]
    field = functional.interpolate(cells, size=(side, side), mode="bicubic", align_corners=True)
    return (patches * torch.exp(amount * field)).clamp(0.0, 255.0)


def curved(patches: Tensor, knots: Tensor, amount: Tensor) -> Tensor:
    """Mix each patch with itself seen through its piecewise linear tone curve.

    The curve spans the range of grey levels of the patch and may rise and fall.
    """
    low = patches.amin(dim=(2, 3), keepdim=True)
    span = (patches.amax(dim=(2, 3), keepdim=True) - low).clamp_min(1.0)
    place = ((patches - low) / span * (_CURVE_KNOTS - 1)).flatten(1)
    left = place.floor().clamp(0, _CURVE_KNOTS - 2).long()
    before, after = knots.gather(1, left), knots.gather(1, left + 1)
    bent = (before + (place - left) * (after - before)).view_as(patches) * span + low
    return patches + amount * (bent - patches)
