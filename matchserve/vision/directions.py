"""The dominant directions of the gradient around points, for points that come without orientation.

As in SIFT (Lowe 2004, section 5): the peaks of a histogram of 36 directions, weighted by a Gaussian
of 1.5 sigma.
"""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

from matchserve.types import Float32, Float64, Image, UInt8
from matchserve.vision.keypoints import Check, go_on

_BINS = 36
_WEIGHT_SIGMA = 1.5
_RADIUS = 8  # of the grid of samples; its step is 4.5 sigma / 8
# A further direction has a peak of at least this share of the highest one.
_FURTHER_SHARE = 0.8
# Only the parts of an image that hold points are blurred.
_TILE = 512
_MARGIN = 32  # the blur reaches 12 pixels, the grid 13, and both are interpolated


def dominant_directions(image: Image, xy: Float32, sigma: Float32, check: Check = go_on) -> Float32:
    """Return the strongest direction of the gradient around each point, in radians.

    `xy` are in pixels of the image as sent, `sigma` in pixels of the working image. `check` is
    called before each part of the image that is looked at; it raises an error if the search must
    end.
    """
    return all_directions(image, xy, sigma, 0, check)[1]


def all_directions(
    image: Image, xy: Float32, sigma: Float32, several: int, check: Check = go_on
) -> tuple[NDArray[np.intp], Float32]:
    """Return the directions of the gradient around points: their rows, and angles in radians.

    First come the strongest directions of all points, then the other ones, nearly as strong, of the
    first `several` points. The other arguments are those of `dominant_directions`.
    """
    histograms = _histograms(image, xy, sigma, check)
    highest = histograms.argmax(axis=1)
    few = histograms[:several]
    is_peak = few > np.roll(few, 1, axis=1)
    is_peak &= few >= np.roll(few, -1, axis=1)
    is_peak &= few >= _FURTHER_SHARE * few.max(axis=1, keepdims=True, initial=0.0)
    is_peak[np.arange(len(few)), highest[:several]] = False
    further, bins = np.nonzero(is_peak)
    rows = np.concatenate([np.arange(len(xy)), further])
    return rows, _interpolated(histograms, rows, np.concatenate([highest, bins]))


def _histograms(image: Image, xy: Float32, sigma: Float32, check: Check) -> Float64:
    """Return the smoothed histogram of directions around each point, (N, 36)."""
    histograms = np.zeros((len(xy), _BINS))
    working = image.to_working(xy)
    # Points of about the same scale share a blurred image: half-octaves, as few as there are.
    levels = np.round(2 * np.log2(np.maximum(sigma, 0.5))).astype(int)
    # Blurring 50 megapixels by 1000 pixels takes minutes: points of a large scale are looked at in
    # a smaller copy, where sigma is at most 2.9 pixels.
    octaves = np.maximum(levels // 2 - 1, 0)
    for octave in np.unique(octaves):
        check()
        grey = _reduced(image.grey, 2 ** int(octave))
        places = (working + 0.5) / 2**octave - 0.5
        for level in np.unique(levels[octaves == octave]):
            rows = np.flatnonzero(levels == level)
            for part in _by_tile(places[rows]):
                check()
                found = _histograms_at(grey, places[rows[part]], 2.0 ** (level / 2 - octave))
                histograms[rows[part]] = found
    return _smoothed(histograms)


def _reduced(grey: UInt8, reduction: int) -> UInt8:
    """Return means of squares of pixels; the last ones are filled up by repeated pixels."""
    if reduction == 1:
        return grey
    down, right = (-side % reduction for side in grey.shape)
    filled = cv2.copyMakeBorder(grey, 0, down, 0, right, cv2.BORDER_REPLICATE)
    size = (filled.shape[1] // reduction, filled.shape[0] // reduction)
    return np.asarray(cv2.resize(filled, size, interpolation=cv2.INTER_AREA), np.uint8)


def _by_tile(xy: Float64) -> Iterator[NDArray[np.intp]]:
    """Yield the numbers of the points in each tile that holds any."""
    tiles = np.floor(xy / _TILE).astype(np.int64)
    order = np.lexsort(tiles.T)
    is_first = np.any(np.diff(tiles[order], axis=0), axis=1)
    yield from np.split(order, np.flatnonzero(is_first) + 1)


def _histograms_at(grey: UInt8, xy: Float64, sigma: float) -> Float64:
    """Return the histograms of the points of one tile."""
    first = np.maximum(np.floor(xy.min(axis=0)).astype(int) - _MARGIN, 0)
    last = np.ceil(xy.max(axis=0)).astype(int) + _MARGIN
    part = grey[first[1] : last[1] + 1, first[0] : last[0] + 1]
    blurred = cv2.GaussianBlur(part.astype(np.float32), (0, 0), sigma)
    gradient_x = cv2.Sobel(blurred, cv2.CV_32F, 1, 0, ksize=1, borderType=cv2.BORDER_REPLICATE)
    gradient_y = cv2.Sobel(blurred, cv2.CV_32F, 0, 1, ksize=1, borderType=cv2.BORDER_REPLICATE)
    steps = np.arange(-_RADIUS, _RADIUS + 1) * (3 * _WEIGHT_SIGMA * sigma / _RADIUS)
    offsets = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
    places = ((xy - first)[:, None] + offsets).astype(np.float32)
    x, y = np.ascontiguousarray(places[..., 0]), np.ascontiguousarray(places[..., 1])
    border = cv2.BORDER_REPLICATE
    dx = np.asarray(cv2.remap(gradient_x, x, y, cv2.INTER_LINEAR, borderMode=border))
    dy = np.asarray(cv2.remap(gradient_y, x, y, cv2.INTER_LINEAR, borderMode=border))
    weight = np.exp(-(offsets**2).sum(axis=1) / (2 * (_WEIGHT_SIGMA * sigma) ** 2))
    strength = np.hypot(dx, dy) * weight.astype(np.float32)
    bins = np.floor(np.arctan2(dy, dx) / (2 * np.pi) * _BINS).astype(np.int64) % _BINS
    flat = (bins + _BINS * np.arange(len(xy))[:, None]).ravel()
    histogram = np.bincount(flat, strength.ravel(), _BINS * len(xy)).reshape(-1, _BINS)
    return histogram.astype(np.float64)


def _smoothed(histograms: Float64) -> Float64:
    kernel = np.array([1, 4, 6, 4, 1]) / 16
    shifted = [k * np.roll(histograms, n - 2, axis=1) for n, k in enumerate(kernel)]
    return np.asarray(np.sum(shifted, axis=0))


def _interpolated(histograms: Float64, rows: NDArray[np.intp], bins: NDArray[np.intp]) -> Float32:
    """Return the angles of peaks, by a parabola through the neighbours of their bins."""
    centre = histograms[rows, bins]
    before, after = histograms[rows, (bins - 1) % _BINS], histograms[rows, (bins + 1) % _BINS]
    curve = before - 2 * centre + after
    shift = np.where(curve < 0, 0.5 * (before - after) / np.minimum(curve, -1e-12), 0.0)
    return np.asarray((bins + 0.5 + shift) * 2 * np.pi / _BINS % (2 * np.pi), np.float32)
