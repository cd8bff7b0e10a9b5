"""Difference-of-Gaussians keypoints; the only module that uses OpenCV's keypoint conventions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from matchserve import defaults
from matchserve.errors import InvalidParameter
from matchserve.types import Bool, Float64, Image, Keypoints, UInt8
from matchserve.vision.selection import (
    SELECTIONS,
    Selection,
    candidate_count,
    is_best_nearby,
    repeatability_scores,
)
from matchserve.vision.texture import is_textured
from matchserve.vision.tiles import keypoint_rows

Check = Callable[[], None]
"""Called before each part of the search; it raises an error if the search must end."""

DetectorChoice = Literal["auto", "dog", "learned"]
DETECTORS: tuple[DetectorChoice, ...] = get_args(DetectorChoice)

_SIFT_SIGMA = 1.6
_LAYERS = 3
# The blur that SIFT assumes in the input, in pixels of the doubled image.
_DOUBLED_BLUR = 1.0
# Number of keypoints per extremum of the finest octave, sampled at the resolution of the image:
# measured 1.4 to 2.7 for 95 % of photographs. A value below that requests a few keypoints too many.
_KEYPOINTS_PER_EXTREMUM = 1.1
# Column of rows (x, y, sigma, angle, contrast or score, rank): 0 for the first orientation of a
# position, 1 and more for the others.
_RANK = 5
# The extrema are counted in bands of this many rows, one band every this many rows.
_BAND, _BAND_STEP = 32, 128


@dataclass(frozen=True, slots=True)
class DetectOptions:
    """How keypoints are found.

    `detector` is "dog" for extrema of differences of Gaussians, "learned" for the network that
    comes with some models, or "auto" for the one that the model's card names.
    A position may have several dominant orientations. `max_keypoints` counts positions, and one
    orientation of each is used. The best `further_orientations` of the positions, a share from 0
    to 1, add a keypoint for each of their other orientations, at most this share of
    `max_keypoints` in all (docs/research/keypoints.md). `duplicates` keeps all orientations and
    counts every one of them instead.
    `upright` sets every angle to 0, which leaves one keypoint for each position. The
    thresholds are those of OpenCV. The defaults accept almost every extremum, also on edges, and
    keep the strongest: this gives more correct matches than OpenCV's 0.04 and 10 for the same
    number of keypoints. `selection` is how the `max_keypoints` are chosen: those of the highest
    contrast, or those that are most likely found again (`vision.selection`).
    """

    max_keypoints: int = defaults.MAX_KEYPOINTS
    upright: bool = False
    duplicates: bool = False
    contrast_threshold: float = 0.01
    edge_threshold: float = 10_000.0
    selection: Selection = defaults.SELECTION
    further_orientations: float = defaults.FURTHER_ORIENTATIONS
    detector: DetectorChoice = defaults.DETECTOR

    def __post_init__(self) -> None:
        if self.detector not in DETECTORS:
            raise InvalidParameter(
                f"detector is {self.detector!r}, not one of {', '.join(DETECTORS)}"
            )
        if self.max_keypoints < 1:
            raise InvalidParameter(f"max_keypoints is {self.max_keypoints}, must be at least 1")
        if not (math.isfinite(self.contrast_threshold) and self.contrast_threshold >= 0):
            raise InvalidParameter("contrast_threshold must be a finite number, at least 0")
        if not (math.isfinite(self.edge_threshold) and self.edge_threshold > 0):
            raise InvalidParameter("edge_threshold must be a finite number above 0")
        if self.selection not in SELECTIONS:
            raise InvalidParameter(
                f"selection is {self.selection!r}, not one of {', '.join(SELECTIONS)}"
            )
        if not 0.0 <= self.further_orientations <= 1.0:
            raise InvalidParameter(
                f"further_orientations is {self.further_orientations}, not in 0..1"
            )


class Region(Protocol):
    """Says where keypoints are taken; `Mask` is one."""

    def allows(self, xy: NDArray[Any], size: tuple[int, int], /) -> Bool:
        """Return which points (N, 2) of an image of this size may be keypoints."""
        ...


def go_on() -> None:
    """Let every search go on."""


def detect(
    image: Image,
    options: DetectOptions | None = None,
    mask: Region | None = None,
    check: Check = go_on,
) -> Keypoints:
    """Find DoG keypoints, those of the highest score first, in pixels of the image as sent.

    The score is the contrast, or contrast times sigma if `selection` is `repeatable`. Keypoints
    that `mask` ignores are neither returned nor counted. Keypoints of equal score are sorted by
    position, scale and angle, so the same image always gives the same list. Keypoints in flat
    regions are dropped: their descriptors are noise.
    """
    options = options or DetectOptions()

    def is_allowed(rows: Float64) -> Bool:
        if mask is None:
            return np.ones(len(rows), np.bool_)
        return mask.allows(image.to_sent(rows[:, :2]), image.size)

    rows = _chosen(image.grey, options, is_allowed, check)
    scale = math.sqrt(float(np.prod(image.scale_xy)))
    xy = image.to_sent(rows[:, :2]).astype(np.float32)
    sigma, angle, score = rows[:, 2:5].astype(np.float32).T
    return Keypoints(xy, sigma / np.float32(scale), angle, score)


def to_opencv(keypoints: Keypoints, image: Image) -> list[cv2.KeyPoint]:
    """Convert to OpenCV keypoints of the working image, with the octave that SIFT needs.

    Keypoints that are too large for any octave get the last one.
    """
    xy = image.to_working(keypoints.xy)
    sizes = 2.0 * keypoints.sigma * math.sqrt(float(np.prod(image.scale_xy)))
    degrees = np.degrees(keypoints.angle) % 360.0
    octaves = _packed_octaves(sizes.astype(np.float64), image.grey.shape)
    return [
        cv2.KeyPoint(float(x), float(y), float(size), float(angle), 1.0, int(octave))
        for (x, y), size, angle, octave in zip(xy, sizes, degrees, octaves, strict=True)
    ]


def _chosen(
    grey: UInt8, options: DetectOptions, is_allowed: Callable[[Float64], Bool], check: Check
) -> Float64:
    """Return the rows of the keypoints that `selection` prefers, best first."""
    if options.selection == "contrast":
        rows = _strongest(grey, options, options.max_keypoints, is_allowed, check)
        gives_way = np.zeros(len(rows), np.bool_)
    else:
        wanted = candidate_count(options.max_keypoints)
        rows = _strongest(grey, options, wanted, is_allowed, check)
        rows[:, 4] = repeatability_scores(rows)
        gives_way = ~is_best_nearby(rows[:, :2], rows[:, 4], grey.shape)
    keys = (rows[:, 3], rows[:, _RANK], *rows[:, [2, 0, 1]].T, -rows[:, 4], gives_way)
    return _best(rows[np.lexsort(keys)], options)


def _best(rows: Float64, options: DetectOptions) -> Float64:
    """Return the best positions of sorted rows, the best of them with further orientations."""
    is_first = rows[:, _RANK] == 0
    place = np.cumsum(is_first) - 1
    most = int(options.further_orientations * options.max_keypoints)
    is_further = ~is_first & (place < most)
    is_further &= np.cumsum(is_further) <= most
    return np.asarray(rows[(is_first & (place < options.max_keypoints)) | is_further])


def _strongest(
    grey: UInt8,
    options: DetectOptions,
    wanted: int,
    is_allowed: Callable[[Float64], Bool],
    check: Check = go_on,
) -> Float64:
    """Return rows of at least the `wanted` strongest positions, or of all if fewer exist.

    Weak keypoints cost as much as strong ones. So an estimated contrast threshold is tried first,
    then half of it; keypoints below the threshold could not be among the strongest.
    """
    estimate = _estimate_threshold(grey, wanted)
    for threshold in (estimate, estimate / 2):
        if threshold > options.contrast_threshold:
            rows = _dog(grey, threshold, options, check)
            rows = rows[is_allowed(rows)]
            if np.count_nonzero(rows[:, _RANK] == 0) >= wanted:
                return rows
    rows = _dog(grey, options.contrast_threshold, options, check)
    return np.asarray(rows[is_allowed(rows)])


def _estimate_threshold(grey: UInt8, wanted: int) -> float:
    """Estimate the contrast threshold that leaves `wanted` keypoints, from the finest octave."""
    bands = [grey[top : top + _BAND] for top in range(0, len(grey), _BAND_STEP)]
    strength = np.concatenate([_fine_extrema(band) for band in bands])
    share = sum(len(band) for band in bands) / len(grey)
    rank = math.ceil(wanted * share / _KEYPOINTS_PER_EXTREMUM)
    if rank > len(strength):
        return 0.0
    weakest = float(np.partition(strength, -rank)[-rank])
    return _LAYERS * weakest / 255.0


def _fine_extrema(grey: UInt8) -> NDArray[np.float32]:
    """Return the contrasts, in grey levels, of extrema over position and scale."""
    maps = _fine_differences(grey)
    box = np.ones((3, 3), np.uint8)
    highest, lowest = ([change(m, box) for m in maps] for change in (cv2.dilate, cv2.erode))
    contrasts: list[NDArray[np.float32]] = []
    for i in range(1, len(maps) - 1):
        above = (maps[i] == highest[i]) & (maps[i] > np.maximum(highest[i - 1], highest[i + 1]))
        below = (maps[i] == lowest[i]) & (maps[i] < np.minimum(lowest[i - 1], lowest[i + 1]))
        contrasts.append(np.abs(maps[i][above | below]))
    return np.concatenate(contrasts)


def _fine_differences(grey: UInt8) -> list[NDArray[np.float32]]:
    """Return the DoG maps of SIFT's doubled octave, sampled at the resolution of the image."""
    pixels = grey.astype(np.float32)
    blurred: list[NDArray[np.float32]] = []
    for layer in range(_LAYERS + 3):
        doubled = _SIFT_SIGMA * 2.0 ** (layer / _LAYERS)
        sigma = 0.5 * math.sqrt(doubled**2 - _DOUBLED_BLUR**2)
        side = 2 * math.ceil(2.5 * sigma) + 1
        blurred.append(np.asarray(cv2.GaussianBlur(pixels, (side, side), sigma), np.float32))
    return [after - before for before, after in pairwise(blurred)]


def _dog(grey: UInt8, contrast_threshold: float, options: DetectOptions, check: Check) -> Float64:
    """Return the rows of all keypoints that are not in flat regions, each with its rank."""
    # Without enable_precise_upscale every keypoint is shifted by a quarter of a pixel.
    detector = cv2.SIFT.create(
        nfeatures=0,
        contrastThreshold=contrast_threshold,
        edgeThreshold=options.edge_threshold,
        enable_precise_upscale=True,
    )

    def search(part: UInt8) -> Sequence[cv2.KeyPoint]:
        check()
        return detector.detect(part, None)

    rows = keypoint_rows(grey, search)
    if options.upright:
        rows[:, 3] = 0.0
        rows = np.unique(rows, axis=0)
    rows = np.column_stack([rows, np.zeros(len(rows))])
    if not (options.upright or options.duplicates):
        rows = _with_rank(rows)
        if options.further_orientations == 0:
            rows = rows[rows[:, _RANK] == 0]
    return np.asarray(rows[is_textured(grey, rows[:, :2], rows[:, 2])])


def _with_rank(rows: Float64) -> Float64:
    """Rank the keypoints that share position and scale by the gap of angles before them.

    The one after the widest gap is the first, with rank 0. This choice turns with the image.
    OpenCV does not say which orientation is the strongest.
    """
    rows = rows[np.lexsort(rows.T[3::-1])]
    _, start, group, count = np.unique(
        rows[:, :3], axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    group = group.ravel()
    before = np.arange(len(rows)) - 1
    before[start] = start + count - 1
    gap = (rows[:, 3] - rows[before, 3]) % (2 * np.pi)
    order = np.lexsort((-gap, group))
    rows = rows[order]
    rows[:, _RANK] = np.arange(len(rows)) - np.repeat(start, count)
    return np.asarray(rows)


def _packed_octaves(sizes: Float64, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return OpenCV's `octave` field (octave and layer) for keypoints of these diameters.

    A keypoint of layer 1 to 3 in octave o has the diameter 1.6 * 2^(o+1) * 2^(layer/3), where
    octave -1 is the doubled image.
    """
    steps = _LAYERS * np.log2(np.maximum(sizes, 1e-6) / _SIFT_SIGMA)
    # The number of octaves as OpenCV computes it for a doubled image.
    last = max(0, round(math.log2(2 * min(shape)) - 2) - 1)
    octave = np.clip(np.floor((steps - 0.5) / _LAYERS), 0, last)
    layer = np.clip(np.round(steps - _LAYERS * octave), 1, _LAYERS)
    return np.asarray((octave.astype(np.int64) - 1) & 255 | layer.astype(np.int64) << 8)
