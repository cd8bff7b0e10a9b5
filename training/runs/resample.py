"""Rotate, scale and shift patches by small amounts, each by its own."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

# Patches resampled at a time: their sampling positions (4 MB) stay in the cache of a processor.
_BLOCK = 512


def jitter_matrices(
    count: int,
    rng: np.random.Generator,
    *,
    rotation_deg: float,
    scale: float,
    aspect: float,
    shift: float,
    extra_turn: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Draw (count, 2, 3) sampling matrices in the coordinates of `torch.affine_grid`.

    The limits are those of `AugmentOptions`; `extra_turn` (count,) is added to the rotation, in
    radians.
    """
    limit = math.radians(rotation_deg)
    turn = rng.uniform(-limit, limit, count) + extra_turn
    factor = np.exp(rng.uniform(-scale, scale, count))
    ratio = np.exp(rng.uniform(-aspect, aspect, count) / 2)
    # The coordinates span -1..1, so a shift of one side is 2.
    shifts = rng.uniform(-2 * shift, 2 * shift, (2, count))
    cosine, sine = np.cos(turn), np.sin(turn)
    rows = np.stack(
        [
            np.stack([factor * ratio * cosine, -factor / ratio * sine, shifts[0]], 1),
            np.stack([factor * ratio * sine, factor / ratio * cosine, shifts[1]], 1),
        ],
        1,
    )
    return rows.astype(np.float32)


def resample(patches: Tensor, matrices: Tensor) -> Tensor:
    """Resample each of (M, 1, S, S) with its matrix, bilinearly, repeating the border; float32."""
    if patches.device.type != "cpu":
        return _sample(patches, matrices)
    result = torch.empty(patches.shape)
    for start in range(0, len(patches), _BLOCK):
        part = slice(start, start + _BLOCK)
        result[part] = _sample(patches[part], matrices[part])
    return result


def _sample(patches: Tensor, matrices: Tensor) -> Tensor:
    side = patches.shape[-1]
    centres = torch.arange(side, dtype=torch.float32, device=patches.device)
    centres = (2.0 * centres + 1.0) / side - 1.0
    # torch.affine_grid multiplies a matrix for every sample and takes three times as long as this.
    across = matrices[:, :, :1] * centres + matrices[:, :, 2:]
    down = matrices[:, :, 1:2] * centres
    grid = across[:, :, None, :] + down[:, :, :, None]
    return functional.grid_sample(
        patches.float(),
        grid.movedim(1, 3),
        mode="bilinear",
        padding_mode="border",
        align_corners=False,
    )
