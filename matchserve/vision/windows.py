"""Windows and pyramid levels of an image that is too large to be described at once.

Each level is the image reduced by a factor of 4 more. A level is read in windows with a margin: a
keypoint belongs to the window in whose core its centre lies, and to the level whose pixels fit its
scale, so none is found twice. The margin is wide enough that the pixels that decide about a
keypoint, and its whole patch, are inside the window.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.types import Bool, Keypoints

CORE = 1024
MARGIN = 128
FACTOR = 4
"""Pixels of a level along each side of a pixel of the next level."""

# Octaves of the detector take every 2nd, 4th, ... pixel: of the same pixels in every window.
_ALIGNED = 32

MAX_SIGMA = 7.0
"""Sigma, in pixels of a level, from which a keypoint belongs to the next level.

A patch reaches 18 sigmas: 126 pixels, which is within the margin.
"""


@dataclass(frozen=True, slots=True)
class Level:
    """A reduced copy of the image: `factor` pixels of the image are one of its pixels."""

    factor: int
    width: int
    height: int
    is_last: bool

    def owns(self, sigma: np.ndarray) -> Bool:
        """Mark the keypoints, by sigma in pixels of this level, that belong to it."""
        least = 0.0 if self.factor == 1 else MAX_SIGMA / FACTOR
        most = np.inf if self.is_last else MAX_SIGMA
        return np.asarray((sigma >= least) & (sigma < most))


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of a side: `start` to `end` is read, `core_start` to `core_end` is owned."""

    start: int
    end: int
    core_start: int
    core_end: int

    def owns(self, positions: np.ndarray) -> Bool:
        """Mark positions, counted from `start`, that lie in the core; pixel centres are whole."""
        absolute = positions + self.start + 0.5
        return np.asarray((absolute >= self.core_start) & (absolute < self.core_end))


@dataclass(frozen=True, slots=True)
class Core:
    """The part of a window whose keypoints it owns, as a region for `detect`."""

    across: Span
    down: Span

    @property
    def area(self) -> int:
        """Number of its pixels."""
        across, down = self.across, self.down
        return (across.core_end - across.core_start) * (down.core_end - down.core_start)

    def allows(self, xy: NDArray[Any], size: tuple[int, int]) -> Bool:
        """Mark the points (N, 2) of a window of a width and height that lie in the core."""
        del size
        return np.asarray(self.across.owns(xy[:, 0]) & self.down.owns(xy[:, 1]))


def levels(size: tuple[int, int], core: int = CORE) -> list[Level]:
    """Return the levels of an image of a width and height, down to one that fits in a core."""
    found: list[Level] = []
    factor = 1
    while True:
        width, height = (max(1, side // factor) for side in size)
        is_last = max(width, height) <= core
        found.append(Level(factor, width, height, is_last))
        if is_last:
            return found
        factor *= FACTOR


def spans(length: int, core: int = CORE, margin: int = MARGIN) -> list[Span]:
    """Divide a side into spans of about equal cores."""
    count = -(-length // core)
    edges = [length * number // count for number in range(count + 1)]
    return [
        Span(max(0, start - margin) // _ALIGNED * _ALIGNED, min(length, end + margin), start, end)
        for start, end in itertools.pairwise(edges)
    ]


def in_image(keypoints: Keypoints, level: Level, core: Core) -> Keypoints:
    """Return keypoints of a window in pixels of the whole image."""
    corner = np.array([core.across.start, core.down.start], np.float64)
    xy = (keypoints.xy.astype(np.float64) + corner + 0.5) * level.factor - 0.5
    sigma = keypoints.sigma * np.float32(level.factor)
    return replace(keypoints, xy=xy.astype(np.float32), sigma=sigma)


def windows(level: Level, core: int = CORE) -> Iterator[tuple[Span, list[Span]]]:
    """Yield the rows of windows of a level, from top to bottom: down, and across."""
    across = spans(level.width, core)
    for down in spans(level.height, core):
        yield down, across
