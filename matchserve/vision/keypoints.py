"""Difference-of-Gaussians keypoints: the only code that knows OpenCV's keypoint conventions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

from matchserve import defaults
from matchserve.errors import InvalidParameter
from matchserve.types import Bool, Float64, Image, Keypoints, UInt8

# Standard deviation, in grey levels, under which a keypoint's surroundings count as flat, and the
# side of the square they are measured in, in sigmas (SIFT's own support).
FLAT_STD = 2.0
FLAT_SIDE_SIGMA = 12.0

# DoG keeps its whole pyramid in memory, in float: measured on images of 2 to 48 megapixels.
DETECT_BYTES_PER_PIXEL = 240

_SIFT_SIGMA = 1.6
_LAYERS = 3
# The blur SIFT takes an image to have had, in pixels of the doubled image.
_DOUBLED_BLUR = 1.0
# Keypoints there are for each extremum of the finest octave counted at the image's own resolution:
# 1.4 to 2.7 for 19 in 20 photographs. A low figure asks for more keypoints than are needed.
_KEYPOINTS_PER_EXTREMUM = 1.1
# They are counted in bands of so many rows, one in every so many.
_BAND, _BAND_STEP = 32, 128


@dataclass(frozen=True, slots=True)
class DetectOptions:
    """How keypoints are found.

    `upright` sets every angle to 0 and drops the copies that differ by orientation only.
    The thresholds are OpenCV's; the defaults let almost every extremum compete for the strongest
    places, edges too, which gives more correct matches than OpenCV's 0.04 and 10 at equal numbers.
    """

    max_keypoints: int = defaults.MAX_KEYPOINTS
    upright: bool = False
    contrast_threshold: float = 0.01
    edge_threshold: float = 10_000.0

    def __post_init__(self) -> None:
        if self.max_keypoints < 1:
            raise InvalidParameter(f"max_keypoints is {self.max_keypoints}, must be at least 1")
        if not (math.isfinite(self.contrast_threshold) and self.contrast_threshold >= 0):
            raise InvalidParameter("contrast_threshold must be a number of at least 0")
        if not (math.isfinite(self.edge_threshold) and self.edge_threshold > 0):
            raise InvalidParameter("edge_threshold must be a number above 0")


def detect(image: Image, options: DetectOptions | None = None) -> Keypoints:
    """Find the strongest DoG keypoints, in sent-image coordinates, strongest first.

    Equally strong keypoints are ordered by place, scale and angle, so the same image always
    gives the same list. Keypoints in flat surroundings are dropped: their descriptor is noise.
    """
    options = options or DetectOptions()
    rows = _strongest(image.grey, options)
    order = np.lexsort((rows[:, 3], rows[:, 2], rows[:, 0], rows[:, 1], -rows[:, 4]))
    rows = rows[order[: options.max_keypoints]]
    scale = math.sqrt(float(np.prod(image.scale_xy)))
    xy = image.to_sent(rows[:, :2]).astype(np.float32)
    sigma, angle, score = rows[:, 2:].astype(np.float32).T
    return Keypoints(xy, sigma / np.float32(scale), angle, score)


def to_opencv(keypoints: Keypoints, image: Image) -> list[cv2.KeyPoint]:
    """OpenCV keypoints in the working image, with the octave SIFT needs to describe them.

    Keypoints too large for any octave of the image are given its last one.
    """
    xy = image.to_working(keypoints.xy)
    sizes = 2.0 * keypoints.sigma * math.sqrt(float(np.prod(image.scale_xy)))
    degrees = np.degrees(keypoints.angle) % 360.0
    octaves = _packed_octaves(sizes.astype(np.float64), image.grey.shape)
    return [
        cv2.KeyPoint(float(x), float(y), float(size), float(angle), 1.0, int(octave))
        for (x, y), size, angle, octave in zip(xy, sizes, degrees, octaves, strict=True)
    ]


def _strongest(grey: UInt8, options: DetectOptions) -> Float64:
    """Rows of at least the `max_keypoints` strongest keypoints, or of all if there are fewer.

    Weak keypoints cost as much as strong ones, so a threshold that should leave enough is tried
    first, then half of it; what it leaves out could not have been among the strongest.
    """
    judged = _sufficient_threshold(grey, options.max_keypoints)
    for threshold in (judged, judged / 2):
        if threshold > options.contrast_threshold:
            rows = _dog(grey, threshold, options)
            if len(rows) >= options.max_keypoints:
                return rows
    return _dog(grey, options.contrast_threshold, options)


def _sufficient_threshold(grey: UInt8, wanted: int) -> float:
    """Contrast threshold that probably leaves `wanted` keypoints, judged by the finest octave."""
    bands = [grey[top : top + _BAND] for top in range(0, len(grey), _BAND_STEP)]
    strength = np.concatenate([_fine_extrema(band) for band in bands])
    share = sum(len(band) for band in bands) / len(grey)
    place = math.ceil(wanted * share / _KEYPOINTS_PER_EXTREMUM)
    if place > len(strength):
        return 0.0
    weakest = float(np.partition(strength, -place)[-place])
    return _LAYERS * weakest / 255.0


def _fine_extrema(grey: UInt8) -> NDArray[np.float32]:
    """Contrasts of the extrema over place and scale in `_fine_differences`, in grey levels."""
    maps = _fine_differences(grey)
    box = np.ones((3, 3), np.uint8)
    highest, lowest = ([change(m, box) for m in maps] for change in (cv2.dilate, cv2.erode))
    found: list[NDArray[np.float32]] = []
    for i in range(1, len(maps) - 1):
        above = (maps[i] == highest[i]) & (maps[i] > np.maximum(highest[i - 1], highest[i + 1]))
        below = (maps[i] == lowest[i]) & (maps[i] < np.minimum(lowest[i - 1], lowest[i + 1]))
        found.append(np.abs(maps[i][above | below]))
    return np.concatenate(found)


def _fine_differences(grey: UInt8) -> list[NDArray[np.float32]]:
    """Differences of Gaussians of SIFT's doubled octave, sampled at the image's own pixels."""
    pixels = grey.astype(np.float32)
    blurred: list[NDArray[np.float32]] = []
    for layer in range(_LAYERS + 3):
        doubled = _SIFT_SIGMA * 2.0 ** (layer / _LAYERS)
        sigma = 0.5 * math.sqrt(doubled**2 - _DOUBLED_BLUR**2)
        side = 2 * math.ceil(2.5 * sigma) + 1
        blurred.append(np.asarray(cv2.GaussianBlur(pixels, (side, side), sigma), np.float32))
    return [after - before for before, after in pairwise(blurred)]


def _dog(grey: UInt8, contrast_threshold: float, options: DetectOptions) -> Float64:
    """Rows of the keypoints in textured surroundings."""
    # Without enable_precise_upscale every keypoint is off by a quarter of a pixel.
    detector = cv2.SIFT.create(
        nfeatures=0,
        contrastThreshold=contrast_threshold,
        edgeThreshold=options.edge_threshold,
        enable_precise_upscale=True,
    )
    rows = _as_rows(detector.detect(grey))
    if options.upright:
        rows[:, 3] = 0.0
        rows = np.unique(rows, axis=0)
    return np.asarray(rows[_is_textured(grey, rows)])


def _as_rows(found: Sequence[cv2.KeyPoint]) -> Float64:
    """OpenCV keypoints as rows of x, y, sigma, angle (radians), response."""
    rows = [(*k.pt, 0.5 * k.size, math.radians(k.angle), k.response) for k in found]
    return np.array(rows, np.float64).reshape(-1, 5)


def _is_textured(grey: UInt8, rows: Float64) -> Bool:
    """Whether the surroundings of each keypoint vary by more than `FLAT_STD` grey levels."""
    if len(rows) == 0:
        return np.zeros(0, np.bool_)
    total, squares = cv2.integral2(grey, sdepth=cv2.CV_64F, sqdepth=cv2.CV_64F)
    half = 0.5 * FLAT_SIDE_SIGMA * rows[:, 2]
    bounds = np.array([grey.shape[1], grey.shape[0]])[:, None]
    low = np.clip(np.floor(rows[:, :2].T - half), 0, bounds - 1).astype(np.intp)
    high = np.clip(np.ceil(rows[:, :2].T + half) + 1, low + 1, bounds).astype(np.intp)
    count = np.prod(high - low, axis=0)

    def mean(table: Float64) -> Float64:
        (x0, y0), (x1, y1) = low, high
        corners = table[y1, x1] - table[y0, x1] - table[y1, x0] + table[y0, x0]
        return np.asarray(corners / count)

    average = mean(np.asarray(total))
    variance = mean(np.asarray(squares)) - average**2
    return np.asarray(variance > FLAT_STD**2)


def _packed_octaves(sizes: Float64, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """OpenCV's `octave` field (octave and layer) of keypoints with these diameters.

    A keypoint of layer 1 to 3 in octave o has the diameter 1.6 * 2^(o+1) * 2^(layer/3), where
    octave -1 is the doubled image.
    """
    steps = _LAYERS * np.log2(np.maximum(sizes, 1e-6) / _SIFT_SIGMA)
    # As OpenCV counts the octaves of an image it has doubled.
    last = max(0, round(math.log2(2 * min(shape)) - 2) - 1)
    octave = np.clip(np.floor((steps - 0.5) / _LAYERS), 0, last)
    layer = np.clip(np.round(steps - _LAYERS * octave), 1, _LAYERS)
    return np.asarray((octave.astype(np.int64) - 1) & 255 | layer.astype(np.int64) << 8)
