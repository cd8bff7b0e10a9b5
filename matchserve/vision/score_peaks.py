"""Keypoints where a score is highest around, over the places and scales of an image.

The score of each pixel comes from a function, such as a network (`matchserve.models.detector`). It
is evaluated on the levels of a pyramid, the largest first. A peak of a level that is not lower than
both levels beside it is a keypoint; its place and scale are refined to a fraction of a pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import cv2
import numpy as np

from matchserve.types import Float32, Float64, UInt8

ScoreMap: TypeAlias = Callable[[Float32], Float32]
"""Returns the logarithm of the score of each pixel (H, W) of a level, grey values of 0 to 255.

Scores within `REACH` of the border of its input are not used."""

REACH = 24
"""A score may depend on pixels this far away, in pixels of its level."""
# There are no keypoints this near to the border of a level, in pixels: much of what decides about
# their scores is outside of the image.
_BORDER = 8
_PEAK_SIDE = 5
_LEAST_SIDE = 40
# Smaller images are enlarged for a finer level, as SIFT does.
_ENLARGED_PIXELS = 400_000
# Levels of more pixels are scored in strips: their maps of 10 to 20 channels fill the memory.
_STRIP_PIXELS = 500_000


@dataclass(frozen=True, slots=True)
class Pyramid:
    """How an image is reduced: `per_octave` levels for each halving of its size.

    `sigma` is the scale of a keypoint, in pixels of the level that it is found on.
    """

    per_octave: int
    sigma: float


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """The scores of a level, and how many pixels of the image one of its pixels covers."""

    score: Float32
    ratio: Float64

    def to_image(self, xy: Float64) -> Float64:
        return np.asarray((xy + 0.5) * self.ratio - 0.5)

    def highest_near(self, xy: Float64) -> Float64:
        """Return the highest score in 3 x 3 pixels around places of the image."""
        highest = cv2.dilate(self.score, np.ones((3, 3), np.uint8))
        last = np.array(self.score.shape[::-1]) - 1
        column, row = np.clip(np.rint((xy + 0.5) / self.ratio - 0.5), 0, last).astype(int).T
        return np.asarray(highest[row, column], np.float64)


def score_peaks(
    score: ScoreMap, pyramid: Pyramid, grey: UInt8, check: Callable[[], None]
) -> Float64:
    """Return rows of x, y, sigma and score of all peaks, in pixels of the image.

    `check` is called before each part of the search; it raises an error if the search must end.
    """
    levels = [
        _Level(_scored(score, level, check), np.array(grey.shape[::-1]) / level.shape[::-1])
        for level in _levels(grey, pyramid.per_octave)
    ]
    found = [np.empty((0, 4))]
    for number, level in enumerate(levels):
        check()
        finer = levels[number - 1] if number else None
        coarser = levels[number + 1] if number + 1 < len(levels) else None
        found.append(_peaks_of_level(level, finer, coarser, pyramid))
    return np.concatenate(found)


def _levels(grey: UInt8, per_octave: int) -> Iterator[Float32]:
    """Yield the image at all scales, the largest first."""
    shape = np.array(grey.shape)
    pixels = grey.astype(np.float32)
    if grey.size < _ENLARGED_PIXELS:
        for number in range(per_octave, 0, -1):
            yield _resized(pixels, np.rint(shape * 2 ** (number / per_octave)))
    # The blur of the larger pixels of the next level, minus that which is there.
    blur = 0.5 * math.sqrt(2 ** (2 / per_octave) - 1)
    number, level = 0, pixels
    while min(level.shape) >= _LEAST_SIDE:
        yield level
        number += 1
        blurred = cv2.GaussianBlur(level, (0, 0), blur)
        level = _resized(np.asarray(blurred), np.rint(shape * 2 ** (-number / per_octave)))


def _resized(pixels: Float32, shape: Float64) -> Float32:
    size = (max(1, int(shape[1])), max(1, int(shape[0])))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_LINEAR), np.float32)


def _scored(score: ScoreMap, level: Float32, check: Callable[[], None]) -> Float32:
    """Score a level in strips of rows; beyond its border the level is mirrored."""
    height, width = level.shape
    around = cv2.copyMakeBorder(level, REACH, REACH, REACH, REACH, cv2.BORDER_REFLECT_101)
    step = max(REACH, _STRIP_PIXELS // width)
    parts = []
    for top in range(0, height, step):
        check()
        rows = min(step, height - top)
        strip = np.ascontiguousarray(around[top : top + rows + 2 * REACH], np.float32)
        parts.append(score(strip)[REACH : REACH + rows, REACH : REACH + width])
    return np.concatenate(parts)


def _peaks_of_level(
    level: _Level, finer: _Level | None, coarser: _Level | None, pyramid: Pyramid
) -> Float64:
    row, column = np.nonzero(_is_peak(level.score))
    xy = level.to_image(_refined(level.score, row, column))
    centre = level.score[row, column].astype(np.float64)
    # A missing level beside it counts as lower by one, so that the peak is kept.
    before = centre - 1 if finer is None else finer.highest_near(xy)
    after = centre - 1 if coarser is None else coarser.highest_near(xy)
    shift = np.zeros(len(row))
    if finer is not None and coarser is not None:
        curve = np.minimum(before - 2 * centre + after, -1e-6)
        shift = np.clip(0.5 * (before - after) / curve, -0.5, 0.5)
    pixel = math.sqrt(float(np.prod(level.ratio)))
    sigma = pyramid.sigma * pixel * 2 ** (shift / pyramid.per_octave)
    rows = np.column_stack([xy, sigma, np.exp(np.minimum(centre, 20.0))])
    return np.asarray(rows[(centre >= before) & (centre >= after)])


def _is_peak(score: Float32) -> np.ndarray:
    """Return where scores are the highest around, away from the border; nowhere in flat regions."""
    box = np.ones((_PEAK_SIDE, _PEAK_SIDE), np.uint8)
    highest, lowest = cv2.dilate(score, box), cv2.erode(score, box)
    is_peak = np.zeros(score.shape, np.bool_)
    inside = (slice(_BORDER, -_BORDER), slice(_BORDER, -_BORDER))
    is_peak[inside] = (score == highest)[inside] & (score > lowest)[inside]
    return is_peak


def _refined(score: Float32, row: np.ndarray, column: np.ndarray) -> Float64:
    """Return the places (x, y) of the maxima of quadratics fitted to 3 x 3 scores."""
    around = [score[row + dy, column + dx] for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
    a, b, c, d, e, f, g, h, i = np.stack(around).astype(np.float64)
    gx, gy = (c + f + i - a - d - g) / 6, (g + h + i - a - b - c) / 6
    xx = (a + c + d + f + g + i - 2 * (b + e + h)) / 3
    yy = (a + b + c + g + h + i - 2 * (d + e + f)) / 3
    xy = (a - c - g + i) / 4
    determinant = xx * yy - xy**2
    fits = (determinant > 1e-9) & (xx < 0)
    safe = np.where(fits, determinant, 1.0)
    dx = np.where(fits, (xy * gy - yy * gx) / safe, 0.0)
    dy = np.where(fits, (xy * gx - xx * gy) / safe, 0.0)
    return np.column_stack([column + np.clip(dx, -0.5, 0.5), row + np.clip(dy, -0.5, 0.5)])
