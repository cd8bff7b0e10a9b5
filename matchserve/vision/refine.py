"""Sub-pixel refinement: align the two patches of each match by an affine map.

The patch around the keypoint of image 0 is the template. The patch of image 1 is moved, turned,
scaled and sheared until it looks the same, up to gain and offset: inverse-compositional
Lucas-Kanade (Baker and Matthews 2004) of all matches at once, first on a window of the size that
the descriptor sees, then on a smaller one with finer samples. The point of image 0 stays where it
is; the point of image 1 is where the alignment puts it. An alignment is accepted only where the
two patches correlate well, better than before, and the map stayed near its start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from matchserve.types import Bool, Float32, Image, Keypoints
from matchserve.vision.agreement import similarities


@dataclass(frozen=True, slots=True)
class _Window:
    """Half side in sigmas, samples along a side, and iterations of the alignment."""

    reach: float
    side: int
    iterations: int

    @property
    def step(self) -> float:
        """Distance of neighbouring samples, in sigmas."""
        return 2 * self.reach / (self.side - 1)


# Coarse, then fine. docs/research/match-quality.md says how they were chosen.
_WINDOWS = (_Window(12.0, 15, 3), _Window(6.0, 21, 3))
_MAX_STEP = 0.5
_DAMPING = 1e-2
_BLUR = 0.6


@dataclass(frozen=True, slots=True)
class RefineOptions:
    """When an alignment is accepted: least correlation, farthest shift in sigmas of image 1."""

    min_correlation: float = 0.8
    max_shift_sigma: float = 4.0
    max_stretch: float = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class Refinement:
    """The result for M matches.

    `xy1` are the points of image 1 (raw where not refined), `affine` (M, 2, 2) maps offsets from
    the point of image 0 to offsets from that of image 1, both in pixels as sent; `correlation`
    is that of the two windows after the alignment, `shift` how far the point moved in sigmas,
    `area_change` the base-2 logarithm by which the alignment changed the area of the window.
    """

    xy1: Float32
    affine: Float32
    correlation: Float32
    shift: Float32
    area_change: Float32
    is_refined: Bool


def refine(
    images: tuple[Image, Image],
    keypoints: tuple[Keypoints, Keypoints],
    options: RefineOptions | None = None,
) -> Refinement:
    """Align matched keypoints, row i of one with row i of the other."""
    options = options or RefineOptions()
    frames = [_Frames.of(i, k) for i, k in zip(images, keypoints, strict=True)]
    count = len(keypoints[0])
    warp = np.tile(np.eye(2, 3, dtype=np.float32), (count, 1, 1))
    correlation = np.zeros(count, np.float32)
    for window in _WINDOWS:
        template = _Template.of(frames[0], window)
        warp, correlation = _align(template, frames[1], window, warp)
    shift = np.linalg.norm(warp[:, :, 2], axis=1)
    stretch = np.linalg.svd(warp[:, :, :2], compute_uv=False)
    limit = options.max_stretch
    accepted = (correlation >= options.min_correlation) & (shift <= options.max_shift_sigma)
    accepted &= (stretch[:, 0] < limit) & (stretch[:, 1] > 1 / limit)
    accepted &= np.linalg.det(warp[:, :, :2].astype(np.float64)) > 0
    warp = np.where(accepted[:, None, None], warp, np.eye(2, 3, dtype=np.float32))
    return _in_pixels(images, keypoints, frames, warp, (correlation, shift, accepted))


@dataclass(frozen=True, slots=True, eq=False)
class _Frames:
    """Keypoints as frames of the working image: centre, and sigma times a rotation (M, 2, 2)."""

    pyramid: list[Float32]
    centre: Float32
    axes: Float32
    sigma: Float32

    @classmethod
    def of(cls, image: Image, keypoints: Keypoints) -> _Frames:
        sigma = keypoints.sigma * np.float32(math.sqrt(float(np.prod(image.scale_xy))))
        cosine, sine = sigma * np.cos(keypoints.angle), sigma * np.sin(keypoints.angle)
        axes = np.stack([cosine, -sine, sine, cosine], axis=1).reshape(-1, 2, 2)
        return cls(_pyramid(image), image.to_working(keypoints.xy).astype(np.float32), axes, sigma)

    def sample(self, offsets: Float32, warp: Float32 | None, level: NDArray[np.intp]) -> Float32:
        """Grey values (M, P) at `offsets` (P, 2) in sigmas, moved by `warp` (M, 2, 3)."""
        axes, centre = self.axes, self.centre
        if warp is not None:
            centre = centre + (axes @ warp[:, :, 2:])[:, :, 0]
            axes = axes @ warp[:, :, :2]
        scale = np.float32(0.5) ** level.astype(np.float32)
        maps = (axes @ offsets.T) * scale[:, None, None] + (centre * scale[:, None])[:, :, None]
        values = np.empty((len(centre), len(offsets)), np.float32)
        for number in np.unique(level):
            rows = level == number
            grey = self.pyramid[number]
            values[rows] = cv2.remap(
                grey,
                np.ascontiguousarray(maps[rows, 0]),
                np.ascontiguousarray(maps[rows, 1]),
                cv2.INTER_LINEAR,
                borderMode=cv2.BORDER_REPLICATE,
            )
        return values

    def levels(self, step_sigma: float) -> NDArray[np.intp]:
        """The pyramid level whose pixels are nearest to the sampling step of each keypoint."""
        level = np.round(np.log2(np.maximum(self.sigma * step_sigma, 1e-6)))
        return np.asarray(np.clip(level, 0, len(self.pyramid) - 1), np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class _Template:
    """What the alignment needs of the windows of image 0, the same in every iteration."""

    offsets: Float32
    values: Float32
    update: Float32
    weights: Float32

    @classmethod
    def of(cls, frames: _Frames, window: _Window) -> _Template:
        step, side = window.step, window.side
        axis = np.linspace(-window.reach, window.reach, side, dtype=np.float32)
        x, y = np.meshgrid(axis, axis)
        offsets = np.stack([x.ravel(), y.ravel()], axis=1)
        weights = _weights(offsets, window.reach)
        raw = frames.sample(offsets, None, frames.levels(step))
        grid = raw.reshape(-1, side, side)
        norm = np.sqrt(_variance(raw, weights))[:, None]
        gx = _slope(grid, 2).reshape(raw.shape) / (step * norm)
        gy = _slope(grid, 1).reshape(raw.shape) / (step * norm)
        values = _normalised(raw, weights)
        u, v = offsets.T
        slopes = np.stack([gx * u, gx * v, gx, gy * u, gy * v, gy], axis=1)
        return cls(offsets, values, _pseudo_inverse(slopes, values, weights), weights)


def _align(
    template: _Template, frames: _Frames, window: _Window, warp: Float32
) -> tuple[Float32, Float32]:
    """Iterate all alignments; return the best warp of each and its correlation."""
    level = frames.levels(window.step)
    best = np.full(len(warp), -np.inf, np.float32)
    chosen = warp
    for iteration in range(window.iterations + 1):
        values = _normalised(frames.sample(template.offsets, warp, level), template.weights)
        correlation = (values * template.values) @ template.weights
        is_better = correlation > best
        best = np.where(is_better, correlation, best)
        chosen = np.where(is_better[:, None, None], warp, chosen)
        if iteration < window.iterations:
            change = template.update @ (values - template.values)[:, :, None]
            warp = _composed(warp, change[:, :, 0])
    return chosen, best


def _composed(warp: Float32, change: Float32) -> Float32:
    """`warp` after the inverse of the small affine `change` (M, 6)."""
    change = np.clip(change, -_MAX_STEP, _MAX_STEP).reshape(-1, 2, 3)
    a, b, tx = 1 + change[:, 0, 0], change[:, 0, 1], change[:, 0, 2]
    c, d, ty = change[:, 1, 0], 1 + change[:, 1, 1], change[:, 1, 2]
    det = a * d - b * c
    det = np.where(np.abs(det) < 1e-3, 1e-3, det)
    inverse = np.stack([d, -b, -c, a], axis=1).reshape(-1, 2, 2) / det[:, None, None]
    moved = -(inverse @ np.stack([tx, ty], axis=1)[:, :, None])
    linear = warp[:, :, :2] @ inverse
    shift = warp[:, :, 2:] + warp[:, :, :2] @ moved
    return np.concatenate([linear, shift], axis=2).astype(np.float32)


def _pseudo_inverse(slopes: Float32, values: Float32, weights: Float32) -> Float32:
    """(M, 6, P): from a difference of windows to the affine change, gain and offset apart."""
    slopes = slopes - (slopes @ weights)[:, :, None]
    along = np.matmul(slopes, (weights * values)[:, :, None])
    slopes = slopes - along * values[:, None, :]
    weighted = slopes * weights
    hessian = np.matmul(weighted, slopes.transpose(0, 2, 1)).astype(np.float64)
    trace = np.trace(hessian, axis1=1, axis2=2)[:, None, None]
    hessian += (_DAMPING * trace / 6 + 1e-9) * np.eye(6)
    return np.asarray(np.linalg.inv(hessian).astype(np.float32) @ weighted, np.float32)


def _weights(offsets: Float32, reach: float) -> Float32:
    """Gaussian weights of the samples; they sum to 1."""
    weights = np.exp(-(offsets**2).sum(axis=1) / (2 * (_BLUR * reach) ** 2))
    return np.asarray(weights / weights.sum(), np.float32)


def _slope(grid: Float32, axis: int) -> Float32:
    """Central differences along `axis`, one-sided at the border, per sample."""
    return np.asarray(np.gradient(grid, axis=axis), np.float32)


def _variance(values: Float32, weights: Float32) -> Float32:
    mean = values @ weights
    return np.asarray(np.maximum((values - mean[:, None]) ** 2 @ weights, 1e-4), np.float32)


def _normalised(values: Float32, weights: Float32) -> Float32:
    """Rows of weighted mean 0 and variance 1."""
    centred = values - (values @ weights)[:, None]
    power = (centred * centred) @ weights
    return np.asarray(centred / np.sqrt(np.maximum(power, 1e-4))[:, None], np.float32)


def _pyramid(image: Image) -> list[Float32]:
    levels = [np.asarray(image.grey, np.float32)]
    while min(levels[-1].shape) >= 32 and len(levels) < 8:
        levels.append(np.asarray(cv2.pyrDown(levels[-1]), np.float32))
    return levels


def _in_pixels(
    images: tuple[Image, Image],
    keypoints: tuple[Keypoints, Keypoints],
    frames: list[_Frames],
    warp: Float32,
    judged: tuple[Float32, Float32, Bool],
) -> Refinement:
    """From warps in units of sigma to points and maps in pixels as sent."""
    correlation, shift, accepted = judged
    moved = frames[1].centre + (frames[1].axes @ warp[:, :, 2:])[:, :, 0]
    xy1 = np.where(accepted[:, None], images[1].to_sent(moved), keypoints[1].xy)
    working = frames[1].axes @ warp[:, :, :2] @ np.linalg.inv(frames[0].axes)
    affine = working / images[1].scale_xy[:, None] * images[0].scale_xy[None, :]
    area = np.log2(np.maximum(np.linalg.det(warp[:, :, :2].astype(np.float64)), 1e-3))
    return Refinement(
        xy1.astype(np.float32),
        affine.astype(np.float32),
        correlation.astype(np.float32),
        shift.astype(np.float32),
        area.astype(np.float32),
        accepted,
    )


def refine_some(
    images: tuple[Image, Image],
    keypoints: tuple[Keypoints, Keypoints],
    chosen: Bool,
    options: RefineOptions | None = None,
) -> Refinement:
    """Align the matches marked in `chosen`; the others keep their points, with correlation 0."""
    count = len(chosen)
    part = refine(images, (keypoints[0][chosen], keypoints[1][chosen]), options)
    xy1, affine = keypoints[1].xy.copy(), similarities(*keypoints)
    xy1[chosen], affine[chosen] = part.xy1, part.affine
    numbers = np.zeros((3, count), np.float32)
    numbers[:, chosen] = part.correlation, part.shift, part.area_change
    correlation, shift, area_change = numbers
    is_refined = np.zeros(count, np.bool_)
    is_refined[chosen] = part.is_refined
    return Refinement(xy1, affine, correlation, shift, area_change, is_refined)
