"""Augment a batch of patches.

Quarter turns and flips are the same for all patches of a class: they make it look like another
keypoint. Small rotations, scales, shifts and changes of brightness are drawn for each patch: they
imitate the differences between two detections of one keypoint.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from matchserve.types import UInt8
from training.recipes.options import Degrees, Fraction, NonNegative, Options
from training.runs.sensor import blurred, curved, inverted, shaded


class AugmentOptions(Options):
    """`[augment]`: each amount is the limit of a uniform draw; 0 switches the change off.

    `turns` is drawn per class: `rot_flip` is one of four quarter turns and no, a vertical or a
    horizontal flip (SDGM, dynamic soft margin); `transpose_flip` is that of HardNet. The others are
    drawn per patch. `rotation_deg` is in degrees. `scale` and `aspect` are the logarithm of a
    factor, so about a fraction. `shift` is a fraction of the patch side. `gain` is a fraction,
    `bias` grey levels, `gamma` the logarithm of an exponent, `noise` a standard deviation in grey
    levels. The following imitate other light and other sensors: `invert` is the probability that
    dark and bright are exchanged, `curve` the weight of a random tone curve that need not rise,
    `shading` the standard deviation of the logarithm of a smooth field of exposure factors, and
    `blur` the weight of a copy that is blurred by 1.5 samples.
    """

    turns: Literal["none", "rot_flip", "transpose_flip"] = "rot_flip"
    rotation_deg: Degrees = 0.0
    scale: NonNegative = 0.0
    aspect: NonNegative = 0.0
    shift: Fraction = 0.0
    gain: Fraction = 0.0
    bias: NonNegative = 0.0
    gamma: NonNegative = 0.0
    noise: NonNegative = 0.0
    invert: Fraction = 0.0
    curve: Fraction = 0.0
    shading: NonNegative = 0.0
    blur: Fraction = 0.0

    @property
    def resamples(self) -> bool:
        """Return whether patches are rotated, scaled or shifted."""
        return any((self.rotation_deg, self.scale, self.aspect, self.shift))

    @property
    def changes_brightness(self) -> bool:
        """Return whether grey levels change."""
        return any((self.gain, self.bias, self.gamma, self.noise))

    @property
    def changes_sensor(self) -> bool:
        """Return whether patches are changed as by other light or another sensor."""
        return any((self.invert, self.curve, self.shading, self.blur))


def augment(
    patches: UInt8,
    options: AugmentOptions,
    rng: np.random.Generator,
    *,
    copies: np.ndarray | None = None,
    copy_rotation_deg: float = 0.0,
) -> Tensor:
    """Augment (N, K, S, S), K patches of each of N classes; return float32 (N, K, 1, S, S), 0..255.

    `copies` (N, K) flags patches that repeat another one of the class; they are also rotated by up
    to `copy_rotation_deg`.
    """
    rows, count, side = patches.shape[:3]
    whole = torch.from_numpy(dihedral(patches, options.turns, rng))
    moved = whole.reshape(rows * count, 1, side, side).float()
    extra = np.zeros(rows * count)
    if copies is not None:
        limit = math.radians(copy_rotation_deg)
        extra = np.where(copies.ravel(), rng.uniform(-limit, limit, rows * count), 0.0)
    if options.resamples or extra.any():
        moved = resample(moved, jitter_matrices(rows * count, options, rng, extra))
    if options.changes_sensor:
        moved = change_sensor(moved, options, rng)
    if options.changes_brightness:
        moved = relight(moved, options, rng)
    return moved.view(rows, count, 1, side, side)


def dihedral(patches: UInt8, turns: str, rng: np.random.Generator) -> UInt8:
    """Turn and flip the classes of (N, K, S, S), all K patches of a class alike."""
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
    """Draw (count, 2, 3) sampling matrices for `torch.affine_grid`.

    `extra_turn` (count,) is added to the rotation, in radians.
    """
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
    """Resample each of (M, 1, S, S) with its matrix, bilinearly, repeating the border."""
    grid = functional.affine_grid(matrices, list(patches.shape), align_corners=False)
    return functional.grid_sample(
        patches, grid, mode="bilinear", padding_mode="border", align_corners=False
    )


def relight(patches: Tensor, options: AugmentOptions, rng: np.random.Generator) -> Tensor:
    """Change gamma, gain and bias of each of (M, 1, S, S) and add noise; clip to 0..255."""
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


def change_sensor(patches: Tensor, options: AugmentOptions, rng: np.random.Generator) -> Tensor:
    """Blur, shade, bend and invert each of (M, 1, S, S), in 0..255."""
    result = patches
    if options.blur:
        result = blurred(result, options.blur, rng)
    if options.shading:
        result = shaded(result, options.shading, rng)
    if options.curve:
        result = curved(result, options.curve, rng)
    if options.invert:
        result = inverted(result, options.invert, rng)
    return result
