"""Find keypoints of a large image in tiles, so that the scale space takes a bounded memory.

OpenCV builds the whole scale space of an image: 240 bytes per pixel, most of them for the two
finest octaves. Those are searched in tiles that overlap by as much as a keypoint of these octaves
can see, so each is found as in the whole image. Larger keypoints are found in a copy of half the
size, without the octave of the doubled copy, whose keypoints suffer from the reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import cv2
import numpy as np

from matchserve.types import Float64, UInt8

MAX_WHOLE_PIXELS = 1024 * 1024
"""Images of more pixels are searched in tiles."""
MAX_TILE_PIXELS = 500_000
"""Maximum number of pixels of a tile, margins included: a scale space of 120 MB."""

_WHOLE_BYTES_PER_PIXEL, _TILED_BYTES_PER_PIXEL = 240, 20

# How far the blurs and the orientation window of the two finest octaves reach: 58 pixels, and a few
# more for positions that move while they are refined.
_MARGIN = 64
# Octave -1 is that of the doubled image; 0 has the resolution of the image.
_FIRST_OCTAVE, _LAST_TILED_OCTAVE = -1, 0
_REDUCTION = 2
# SIFT assumes a blur of half a pixel in its input, and so in the reduced copy.
_REDUCED_SIGMA = math.sqrt((0.5 * _REDUCTION) ** 2 - 0.5**2)

Search = Callable[[UInt8], Sequence[cv2.KeyPoint]]


def detection_bytes(pixels: float) -> int:
    """Return the memory that finding keypoints takes, measured on images of 1 to 24 megapixels."""
    if pixels <= MAX_WHOLE_PIXELS:
        return int(_WHOLE_BYTES_PER_PIXEL * pixels)
    return int(max(_WHOLE_BYTES_PER_PIXEL * MAX_TILE_PIXELS, _TILED_BYTES_PER_PIXEL * pixels))


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of an image along one axis: with its margin, and without."""

    start: int
    stop: int
    inner_start: int
    inner_stop: int


def keypoint_rows(grey: UInt8, search: Search) -> Float64:
    """Return x, y, sigma, angle in radians and response of all keypoints that `search` finds."""
    if grey.size <= MAX_WHOLE_PIXELS:
        return _rows(search(grey))[:, :5]
    return _tiled(grey, search, _FIRST_OCTAVE)[:, :5]


def _tiled(grey: UInt8, search: Search, first_octave: int) -> Float64:
    """Return the rows of keypoints of `first_octave` and all above it."""
    if grey.size <= MAX_TILE_PIXELS:
        found = _rows(search(grey))
        return np.asarray(found[found[:, 5] >= first_octave])
    parts = [_in_tile(grey, search, rows, columns) for rows, columns in _tiles(grey.shape)]
    fine = np.concatenate(parts)
    reduced = cv2.GaussianBlur(grey, (0, 0), _REDUCED_SIGMA)[::_REDUCTION, ::_REDUCTION]
    coarse = _tiled(np.ascontiguousarray(reduced, np.uint8), search, _LAST_TILED_OCTAVE)
    coarse[:, :3] *= _REDUCTION
    return np.concatenate([fine[fine[:, 5] >= first_octave], coarse])


def _in_tile(grey: UInt8, search: Search, rows: Tile, columns: Tile) -> Float64:
    tile = np.ascontiguousarray(grey[rows.start : rows.stop, columns.start : columns.stop])
    found = _rows(search(tile))
    found[:, :2] += (columns.start, rows.start)
    is_here = found[:, 5] <= _LAST_TILED_OCTAVE
    for axis, part in ((0, columns), (1, rows)):
        is_here &= (found[:, axis] >= part.inner_start) & (found[:, axis] < part.inner_stop)
    return np.asarray(found[is_here])


def _rows(keypoints: Sequence[cv2.KeyPoint]) -> Float64:
    """Convert OpenCV keypoints to rows; the last column is the octave."""
    rows = [
        (*k.pt, 0.5 * k.size, math.radians(k.angle), k.response, (k.octave + 128) % 256 - 128)
        for k in keypoints
    ]
    return np.array(rows, np.float64).reshape(-1, 6)


def _tiles(shape: tuple[int, ...]) -> Iterator[tuple[Tile, Tile]]:
    """Divide an image into as few tiles of similar size as fit into the limit."""
    height, width = shape[:2]
    counts = [
        (_longest(height, down) * _longest(width, across), down * across, down, across)
        for down in range(1, height // _MARGIN + 1)
        for across in range(1, width // _MARGIN + 1)
    ]
    fitting = [count[1:] for count in counts if count[0] <= MAX_TILE_PIXELS]
    # A very long and narrow image may have none: then as many as there are.
    _, down, across = min(fitting) if fitting else max(counts)[1:]
    for rows in _parts(height, down):
        for columns in _parts(width, across):
            yield rows, columns


def _parts(length: int, count: int) -> list[Tile]:
    edges = [round(number * length / count) for number in range(count + 1)]
    # Keypoints beyond the edge of the image belong to the last tile.
    return [
        Tile(
            max(0, start - _MARGIN),
            min(length, stop + _MARGIN),
            start if start else -length,
            stop if stop < length else 2 * length,
        )
        for start, stop in pairwise(edges)
    ]


def _longest(length: int, count: int) -> int:
    """Return an upper bound of the length of a part, margins included."""
    return math.ceil(length / count) + _MARGIN * min(2, count - 1)
