"""Changes made to a batch of patches, all at once, from one generator.

Quarter turns and flips are the same for all patches of a class: they make another keypoint of it.
Small turns, scales, shifts and light changes are each patch's own: they are what a detector and a
camera do to one keypoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from matchserve.types import UInt8
from training.runs.ranges import NotNegative, Range, Share


@dataclass(frozen=True, slots=True)
class AugmentOptions:
    """`[augment]`; every amount is the largest of a uniform draw around nothing.

    `turns`: `rot_flip` is one of four turns and of no, vertical or horizontal flip (SDGM, dynamic
    soft margin); `transpose_flip` is HardNet's. `scale` and `aspect` are fractions, `shift` of the
    patch side. `gain` is a fraction, `bias` grey levels, `gamma` an exponent's fraction, `noise`
    the standard deviation in grey levels of the noisiest patch.
    """

    turns: Literal["none", "rot_flip", "transpose_flip"] = "rot_flip"
    rotation_deg: Annotated[float, Range(0.0, 180.0)] = 0.0
    scale: NotNegative = 0.0
    aspect: NotNegative = 0.0
    shift: Share = 0.0
    gain: Share = 0.0
    bias: NotNegative = 0.0
    gamma: NotNegative = 0.0
    noise: NotNegative = 0.0

    @property
    def moves(self) -> bool:
        """Whether patches are resampled."""
        return any((self.rotation_deg, self.scale, self.aspect, self.shift))

    @property
    def relights(self) -> bool:
        """Whether grey levels change."""
        return any((self.gain, self.bias, self.gamma, self.noise))


def augment(
    patches: UInt8,
    options: AugmentOptions,
    rng: np.random.Generator,
    *,
    turned: np.ndarray | None = None,
    max_turn_deg: float = 0.0,
) -> Tensor:
    """Augment (N, K, S, S), K patches of N classes; float32 (N, K, 1, S, S), 0..255.

    Patches flagged in `turned` (N, K) are also turned by up to `max_turn_deg`: generated positives.
    """
    rows, count, side = patches.shape[:3]
    whole = torch.from_numpy(dihedral(patches, options.turns, rng))
    moved = whole.reshape(rows * count, 1, side, side).float()
    extra = np.zeros(rows * count)
    if turned is not None:
        limit = math.radians(max_turn_deg)
        extra = np.where(turned.ravel(), rng.uniform(-limit, limit, rows * count), 0.0)
    if options.moves or extra.any():
        moved = resample(moved, jitter_matrices(rows * count, options, rng, extra))
    if options.relights:
        moved = relight(moved, options, rng)
    return moved.view(rows, count, 1, side, side)


def dihedral(patches: UInt8, turns: str, rng: np.random.Generator) -> UInt8:
    """Turn and flip each row of (N, K, S, S) by one draw."""
    if turns == "none":
        return patches
    result = np.empty_like(patches)
    first = rng.integers(0, 4 if turns == "rot_flip" else 2, len(patches))
    second = rng.integers(0, 3 if turns == "rot_flip" else 2, len(patches))
    for a in np.unique(first):
        for b in np.unique(second):
            rows = np.flatnonzero((first == a) & (second == b))
            if len(rows):
                result[rows] = _turned(patches[rows], int(a), int(b), turns)
    return result


def _turned(patches: UInt8, first: int, second: int, turns: str) -> UInt8:
    if turns == "rot_flip":
        block = np.rot90(patches, first, (2, 3))
        flipped = (block, block[:, :, ::-1], block[:, :, :, ::-1])[second]
    else:
        block = patches.swapaxes(2, 3) if first else patches
        flipped = block[:, :, :, ::-1] if second else block
    return np.ascontiguousarray(flipped)


def jitter_matrices(
    count: int, options: AugmentOptions, rng: np.random.Generator, extra_turn: np.ndarray
) -> Tensor:
    """Draw (count, 2, 3) sampling matrices in the coordinates of `torch.affine_grid`."""
    limit = math.radians(options.rotation_deg)
    turn = rng.uniform(-limit, limit, count) + extra_turn
    scale = np.exp(rng.uniform(-options.scale, options.scale, count))
    aspect = np.exp(rng.uniform(-options.aspect, options.aspect, count) / 2)
    # affine_grid spans -1..1, so a shift of one side is 2.
    shift = rng.uniform(-2 * options.shift, 2 * options.shift, (2, count))
    cosine, sine = np.cos(turn), np.sin(turn)
    rows = np.stack(
        [
            np.stack([scale * aspect * cosine, -scale / aspect * sine, shift[0]], 1),
            np.stack([scale * aspect * sine, scale / aspect * cosine, shift[1]], 1),
        ],
        1,
    )
    return torch.from_numpy(rows.astype(np.float32))


def resample(patches: Tensor, matrices: Tensor) -> Tensor:
    """Sample each of (M, 1, S, S) through its matrix, bilinearly, the border continued."""
    grid = functional.affine_grid(matrices, list(patches.shape), align_corners=False)
    return functional.grid_sample(
        patches, grid, mode="bilinear", padding_mode="border", align_corners=False
    )


def relight(patches: Tensor, options: AugmentOptions, rng: np.random.Generator) -> Tensor:
    """Change exposure, contrast and noise of each of (M, 1, S, S), kept in 0..255."""
    count = len(patches)

    def drawn(limit: float) -> Tensor:
        values = rng.uniform(-limit, limit, (count, 1, 1, 1)).astype(np.float32)
        return torch.from_numpy(values)

    result = patches
    if options.gamma:
        result = 255.0 * (result / 255.0).clamp_min(0.0) ** torch.exp(drawn(options.gamma))
    result = result * (1.0 + drawn(options.gain)) + drawn(options.bias)
    if options.noise:
        strength = drawn(options.noise).abs()
        noise = torch.from_numpy(rng.standard_normal(result.shape, np.float32))
        result = result + strength * noise
    return result.clamp(0.0, 255.0)
