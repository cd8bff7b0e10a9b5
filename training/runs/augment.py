"""Augment a batch of patches.

Quarter turns and flips are the same for all patches of a class: they make it look like another
keypoint. Small rotations, scales, shifts and changes of brightness are drawn for each patch: they
imitate the differences between two detections of one keypoint.

What is random is drawn first, for the whole batch, and applied afterwards: a process applies only
the changes of its own patches, on its device, and the number of processes changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from matchserve.types import UInt8
from training.recipes.options import Degrees, Fraction, NonNegative, Options
from training.runs.resample import jitter_matrices, resample
from training.runs.sensor import SensorChanges, change_sensor, draw_sensor


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


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """The changes of (n, K) patches; None where nothing changes.

    `turns` (n, 2) are the two draws of `AugmentOptions.turns` for each class. `matrices` (n * K, 2,
    3) are those of `resample`. `gamma`, `gain` and `bias` are (n * K, 1, 1, 1); `noise` (n * K, 1,
    S, S) is added.
    """

    kind: str
    turns: np.ndarray | None = None
    matrices: Tensor | None = None
    sensor: SensorChanges | None = None
    gamma: Tensor | None = None
    gain: Tensor | None = None
    bias: Tensor | None = None
    noise: Tensor | None = None


def draw_changes(
    shape: tuple[int, int, int],
    options: AugmentOptions,
    rng: np.random.Generator,
    *,
    own: slice | None = None,
    copies: np.ndarray | None = None,
    copy_rotation_deg: float = 0.0,
) -> Changes:
    """Draw the changes of a batch of `shape` (N, K, S); return those of the classes `own`.

    `copies` (N, K) flags patches that repeat another one of the class; they are also rotated by up
    to `copy_rotation_deg`.
    """
    rows, count, side = shape
    own = own or slice(0, rows)
    patches = slice(own.start * count, own.stop * count)
    turns = _draw_turns(rows, options.turns, rng)
    extra = np.zeros(rows * count)
    if copies is not None:
        limit = math.radians(copy_rotation_deg)
        extra = np.where(copies.ravel(), rng.uniform(-limit, limit, rows * count), 0.0)
    matrices = None
    if options.resamples or extra.any():
        matrices = torch.from_numpy(
            jitter_matrices(
                rows * count,
                rng,
                rotation_deg=options.rotation_deg,
                scale=options.scale,
                aspect=options.aspect,
                shift=options.shift,
                extra_turn=extra,
            )[patches]
        )
    sensor = None
    if options.changes_sensor:
        sensor = draw_sensor(
            rows * count,
            patches,
            rng,
            blur=options.blur,
            shading=options.shading,
            curve=options.curve,
            invert=options.invert,
        )
    gamma, gain, bias, noise = _draw_light(rows * count, side, patches, options, rng)
    own_turns = None if turns is None else turns[own]
    return Changes(options.turns, own_turns, matrices, sensor, gamma, gain, bias, noise)


def apply_changes(patches: Tensor, changes: Changes) -> Tensor:
    """Apply `changes` to uint8 (n, K, S, S) on any device; return float32 (n, K, 1, S, S), 0..255.

    The changes must be on the CPU; only what is needed is moved.
    """
    rows, count, side = patches.shape[:3]
    turned = patches
    if changes.turns is not None:
        turned = turn_classes(patches, changes.turns, changes.kind)
    moved = turned.reshape(rows * count, 1, side, side)
    if changes.matrices is not None:
        moved = resample(moved, changes.matrices.to(moved.device))
    moved = moved.float()
    if changes.sensor is not None:
        moved = change_sensor(moved, changes.sensor)
    return relight(moved, changes).view(rows, count, 1, side, side)


def augment(
    patches: UInt8,
    options: AugmentOptions,
    rng: np.random.Generator,
    *,
    copies: np.ndarray | None = None,
    copy_rotation_deg: float = 0.0,
) -> Tensor:
    """Augment (N, K, S, S), K patches of each of N classes; return float32 (N, K, 1, S, S), 0..255.

    `copies` and `copy_rotation_deg` are those of `draw_changes`.
    """
    rows, count, side = patches.shape[:3]
    changes = draw_changes(
        (rows, count, side), options, rng, copies=copies, copy_rotation_deg=copy_rotation_deg
    )
    return apply_changes(torch.from_numpy(patches), changes)


def _draw_turns(rows: int, kind: str, rng: np.random.Generator) -> np.ndarray | None:
    if kind == "none":
        return None
    first = rng.integers(0, 4 if kind == "rot_flip" else 2, rows)
    second = rng.integers(0, 3 if kind == "rot_flip" else 2, rows)
    return np.stack([first, second], 1)


def turn_classes(patches: Tensor, turns: np.ndarray, kind: str) -> Tensor:
    """Turn and flip the classes of (n, K, S, S) as `turns` (n, 2) says, the draws of `kind`."""
    result = torch.empty_like(patches)
    numbers = 4 * turns[:, 1] + turns[:, 0]
    is_on_cpu = patches.device.type == "cpu"
    for number in np.unique(numbers):
        chosen = np.flatnonzero(numbers == number)
        second, first = divmod(int(number), 4)
        if is_on_cpu:
            # numpy copies turned arrays three times as fast as torch.
            source, target = patches.numpy(), result.numpy()
            target[chosen] = _turned(source[chosen], first, second, kind)
        else:
            rows = torch.from_numpy(chosen).to(patches.device)
            result[rows] = _turned_tensor(patches[rows], first, second, kind)
    return result


def _turned(patches: UInt8, first: int, second: int, kind: str) -> UInt8:
    if kind == "rot_flip":
        block = np.rot90(patches, first, (2, 3))
        return (block, block[:, :, ::-1], block[:, :, :, ::-1])[second]
    block = patches.swapaxes(2, 3) if first else patches
    return block[:, :, :, ::-1] if second else block


def _turned_tensor(patches: Tensor, first: int, second: int, kind: str) -> Tensor:
    if kind == "rot_flip":
        block = torch.rot90(patches, first, (2, 3))
        return block if second == 0 else block.flip(1 + second)
    block = patches.transpose(2, 3) if first else patches
    return block.flip(3) if second else block


def _draw_light(
    count: int, side: int, own: slice, options: AugmentOptions, rng: np.random.Generator
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Draw exponent, factor, offset and noise for `count` patches; return those of `own`."""
    if not options.changes_brightness:
        return None, None, None, None

    def drawn(limit: float) -> Tensor:
        values = rng.uniform(-limit, limit, (count, 1, 1, 1))[own].astype(np.float32)
        return torch.from_numpy(values)

    gamma = torch.exp(drawn(options.gamma)) if options.gamma else None
    gain, bias = 1.0 + drawn(options.gain), drawn(options.bias)
    if not options.noise:
        return gamma, gain, bias, None
    strength = drawn(options.noise).abs()
    # Draws before those of this process are skipped by making them.
    rng.standard_normal((own.start, side, side), np.float32)
    noise = rng.standard_normal((own.stop - own.start, 1, side, side), np.float32)
    return gamma, gain, bias, strength * torch.from_numpy(noise)


def relight(patches: Tensor, changes: Changes) -> Tensor:
    """Change gamma, gain and bias of each of (M, 1, S, S) and add noise; clip to 0..255."""
    if changes.gain is None or changes.bias is None:
        return patches
    device = patches.device
    result = patches
    if changes.gamma is not None:
        result = 255.0 * (result / 255.0).clamp_min(0.0) ** changes.gamma.to(device)
    result = result * changes.gain.to(device) + changes.bias.to(device)
    if changes.noise is not None:
        result = result + changes.noise.to(device)
    return result.clamp(0.0, 255.0)
