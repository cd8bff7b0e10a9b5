"""Sub-pixel refinement: align the two patches of each match by an affine map.

The patch around the keypoint of image 0 is the template. The patch of image 1 is moved, turned,
scaled and sheared until it looks the same, up to gain and offset: inverse-compositional
Lucas-Kanade (Baker and Matthews 2004) of all matches at once, first on a window of the size that
the descriptor sees, then on a smaller one with finer samples. The point of image 0 stays where it
is; the point of image 1 is where the alignment puts it. An alignment is accepted only where the
two patches correlate well, better than before, and the map stayed near its start.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from matchserve.types import Bool, Float32, Image, Keypoints
from matchserve.vision.agreement import similarities
from matchserve.vision.alignment import Template, Window, align, determinant, stretch
from matchserve.vision.products import multiply

# Coarse, then fine. docs/research/match-quality.md says how they were chosen.
_WINDOWS = (Window.of(12.0, 15, 5), Window.of(6.0, 19, 3))
# The last window of large keypoints, and how far it may move the point, in sigmas as capped.
_CAPPED_WINDOW = Window.of(6.0, 19, 4)
_MAX_CAPPED_SHIFT = 3.0
_LARGEST_CAP_FACTOR = 0.9


@dataclass(frozen=True, slots=True)
class RefineOptions:
    """When an alignment is accepted: least correlation, farthest shift in sigmas of image 1.

    With `capped_sigma`, in pixels of the working image, the points of larger keypoints are aligned
    once more in the window of a keypoint of that size: the samples of a large window are too far
    apart for a precise position.
    """

    min_correlation: float = 0.8
    max_shift_sigma: float = 4.0
    max_stretch: float = 3.0
    capped_sigma: float | None = None


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
    frames = (_Frames.of(images[0], keypoints[0]), _Frames.of(images[1], keypoints[1]))
    count = len(keypoints[0])
    warp = np.tile(np.eye(2, 3, dtype=np.float32), (count, 1, 1))
    correlation = np.zeros(count, np.float32)
    for window in _WINDOWS:
        warp, correlation = _aligned(frames, window, warp)
    shift = np.hypot(warp[:, 0, 2], warp[:, 1, 2])
    accepted = (shift <= options.max_shift_sigma) & _is_plausible(warp, correlation, options)
    if options.capped_sigma is not None:
        warp, correlation = _align_capped(frames, warp, correlation, accepted, options)
    warp = np.where(accepted[:, None, None], warp, np.eye(2, 3, dtype=np.float32))
    return _in_pixels(images, keypoints, frames, warp, (correlation, shift, accepted))


def _is_plausible(warp: Float32, correlation: Float32, options: RefineOptions) -> Bool:
    """Return whether the windows look alike and are not distorted too much."""
    linear = warp[:, :, :2]
    longest, shortest = stretch(linear)
    limit = options.max_stretch
    is_whole = (longest < limit) & (shortest > 1 / limit) & (determinant(linear) > 0)
    return np.asarray(is_whole & (correlation >= options.min_correlation))


def _align_capped(
    frames: tuple[_Frames, _Frames],
    warp: Float32,
    correlation: Float32,
    accepted: Bool,
    options: RefineOptions,
) -> tuple[Float32, Float32]:
    """Align accepted matches of large keypoints in a smaller window, where that succeeds."""
    smaller = np.minimum(frames[0].sigma, frames[1].sigma)
    factor = np.asarray((options.capped_sigma or np.inf) / smaller, np.float32)
    rows = np.flatnonzero(accepted & (factor < _LARGEST_CAP_FACTOR))
    factor = factor[rows, None]
    start = warp[rows].copy()
    start[:, :, 2] /= factor
    capped = (frames[0].scaled(rows, factor), frames[1].scaled(rows, factor))
    found, similar = _aligned(capped, _CAPPED_WINDOW, start)
    step = np.linalg.norm(found[:, :, 2] - start[:, :, 2], axis=1)
    is_better = (step <= _MAX_CAPPED_SHIFT) & _is_plausible(found, similar, options)
    found[:, :, 2] *= factor
    warp, correlation = warp.copy(), correlation.copy()
    warp[rows[is_better]] = found[is_better]
    correlation[rows[is_better]] = similar[is_better]
    return warp, correlation


def _aligned(
    frames: tuple[_Frames, _Frames], window: Window, warp: Float32
) -> tuple[Float32, Float32]:
    """Align one window of all matches, from `warp`; return the warps and their correlation."""
    level0, level1 = _levels(frames, window.step)
    template = Template.of(frames[0].sample(window, None, level0), window)
    return align(template, functools.partial(frames[1].sample, window, level=level1), warp)


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

    def scaled(self, rows: NDArray[np.intp], factor: Float32) -> _Frames:
        """Return some of the frames, with sigma multiplied by `factor` (M, 1)."""
        axes = self.axes[rows] * factor[:, :, None]
        return _Frames(self.pyramid, self.centre[rows], axes, self.sigma[rows] * factor[:, 0])

    def sample(self, window: Window, warp: Float32 | None, level: NDArray[np.intp]) -> Float32:
        """Grey values (M, P) of the windows, moved by `warp` (M, 2, 3)."""
        axes, centre = self.axes, self.centre
        if warp is not None:
            centre = centre + (axes @ warp[:, :, 2:])[:, :, 0]
            axes = axes @ warp[:, :, :2]
        values = np.empty((len(centre), window.side**2), np.float32)
        for number in np.unique(level):
            rows = np.flatnonzero(level == number)
            scale = np.float32(0.5**number)
            x, y = _grid(scale * centre[rows], scale * axes[rows], window)
            values[rows] = cv2.remap(
                self.pyramid[number], x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
            )
        return values


def _levels(
    frames: tuple[_Frames, _Frames], step_sigma: float
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the pyramid levels (M,) at which the windows of both images are sampled.

    In image 1 it is the coarsest level whose pixels are not larger than the sampling step: coarser
    ones would blur details that the samples still resolve. In image 0 it is the one at which the
    window is blurred as much, in sigmas.
    """
    step0, step1 = (np.log2(np.maximum(one.sigma * step_sigma, 1e-6)) for one in frames)
    level1 = np.floor(step1)
    level0 = np.round(level1 + step0 - step1)
    first, second = (
        np.asarray(np.clip(level, 0, len(one.pyramid) - 1), np.intp)
        for level, one in zip((level0, level1), frames, strict=True)
    )
    return first, second


def _grid(centre: Float32, axes: Float32, window: Window) -> tuple[Float32, Float32]:
    """Coordinates x and y, (M, P) each, of the samples of windows."""
    maps = np.concatenate([centre[:, :, None], axes], axis=2)
    return multiply(maps[:, 0], window.linear), multiply(maps[:, 1], window.linear)


def _pyramid(image: Image) -> list[Float32]:
    levels = [np.asarray(image.grey, np.float32)]
    while min(levels[-1].shape) >= 32 and len(levels) < 8:
        levels.append(np.asarray(cv2.pyrDown(levels[-1]), np.float32))
    return levels


def _in_pixels(
    images: tuple[Image, Image],
    keypoints: tuple[Keypoints, Keypoints],
    frames: tuple[_Frames, _Frames],
    warp: Float32,
    judged: tuple[Float32, Float32, Bool],
) -> Refinement:
    """From warps in units of sigma to points and maps in pixels as sent."""
    correlation, shift, accepted = judged
    moved = frames[1].centre + (frames[1].axes @ warp[:, :, 2:])[:, :, 0]
    xy1 = np.where(accepted[:, None], images[1].to_sent(moved), keypoints[1].xy)
    turned_back = frames[0].axes.transpose(0, 2, 1) / (frames[0].sigma ** 2)[:, None, None]
    working = frames[1].axes @ warp[:, :, :2] @ turned_back
    affine = working / images[1].scale_xy[:, None] * images[0].scale_xy[None, :]
    area = np.log2(np.maximum(determinant(warp[:, :, :2]), 1e-3))
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
