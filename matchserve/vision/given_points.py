"""Keypoints that the user gives: positions, and scales and orientations where they are known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from matchserve.errors import InvalidParameter
from matchserve.types import Float32, Image, Keypoints
from matchserve.vision.keypoints import Check, go_on

DEFAULT_SIGMA = 1.6
"""Scale of a point without one, in pixels of the working image: the finest scale of SIFT, and the
median of detected keypoints in ordinary photographs (1.3 to 1.6 on the sample pairs)."""
MIN_SIGMA, MAX_SIGMA = 0.1, 1000.0

# Lowe 2004, section 5: a histogram of 36 directions, weighted by a Gaussian of 1.5 sigma.
_BINS = 36
_WEIGHT_SIGMA = 1.5
_RADIUS = 8  # of the grid of samples; its step is 4.5 sigma / 8
# Blurring 50 megapixels by 1000 pixels takes minutes. So points of a large scale are looked at in a
# reduced image, and only the parts of an image that hold points are blurred.
_MAX_LEVEL = 7  # half-octaves: blurs of at most 11.3 pixels of the image they are looked at in
_TILE = 512
_MARGIN = 104  # the blur reaches 46 pixels, the grid 51, and both are interpolated


@dataclass(frozen=True, slots=True, eq=False)
class GivenPoints:
    """N points (N, 2) to describe, in pixels of the image as sent.

    `scales` are sigmas in pixels. `orientations` are in radians, clockwise from the x axis.
    Without scales, points are described at `DEFAULT_SIGMA`; without orientations, at the dominant
    direction of the gradient around them.
    """

    xy: Float32
    scales: Float32 | None = None
    orientations: Float32 | None = None

    def __post_init__(self) -> None:
        xy = _array(self.xy, "keypoints")
        if xy.ndim != 2 or xy.shape[1] != 2:
            raise InvalidParameter("keypoints must be rows of x, y")
        object.__setattr__(self, "xy", xy)
        for name in ("scales", "orientations"):
            if getattr(self, name) is not None:
                values = _array(getattr(self, name), name)
                if values.shape != (len(xy),):
                    raise InvalidParameter(f"{name} must be one number for each keypoint")
                object.__setattr__(self, name, values)
        scales = self.scales
        if scales is not None and not ((scales >= MIN_SIGMA) & (scales <= MAX_SIGMA)).all():
            raise InvalidParameter(f"scales must be in {MIN_SIGMA}..{MAX_SIGMA:g} pixels")

    def __len__(self) -> int:
        return len(self.xy)

    @property
    def key(self) -> bytes:
        """The content as bytes: equal for equal points."""
        parts = (self.xy, self.scales, self.orientations)
        return b"|".join(b"-" if part is None else part.tobytes() for part in parts)


def place(given: GivenPoints, image: Image, *, is_upright: bool, check: Check = go_on) -> Keypoints:
    """Return given points as keypoints of an image, in their order.

    `check` is called before each part of the image in which directions are sought.

    Raises:
        InvalidParameter: a point is outside of the image.
    """
    width, height = image.size
    x, y = given.xy.T
    outside = np.flatnonzero(~((x >= -0.5) & (y >= -0.5) & (x < width - 0.5) & (y < height - 0.5)))
    if len(outside):
        raise InvalidParameter(
            f"keypoint {outside[0]} is outside of the image of {width}x{height} pixels"
        )
    scale = math.sqrt(float(np.prod(image.scale_xy)))
    count = len(given)
    sigma = given.scales
    if sigma is None:
        sigma = np.full(count, DEFAULT_SIGMA / scale, np.float32)
    if is_upright:
        angle = np.zeros(count, np.float32)
    elif given.orientations is not None:
        angle = given.orientations
    else:
        angle = _dominant_directions(image, given.xy, sigma * np.float32(scale), check)
    return Keypoints(given.xy, sigma, angle, np.ones(count, np.float32))


def _dominant_directions(image: Image, xy: Float32, sigma: Float32, check: Check) -> Float32:
    """Return the strongest direction of the gradient around each point, in radians."""
    angles = np.zeros(len(xy), np.float32)
    working = image.to_working(xy)
    # Points of about the same scale share a blurred image: half-octaves, as few as there are.
    levels = np.round(2 * np.log2(np.maximum(sigma, 0.5))).astype(int)
    octaves = np.maximum(0, (levels - _MAX_LEVEL + 1) // 2)
    reduced, blur = np.asarray(image.grey), 0.0
    for octave in range(int(octaves.max(initial=0)) + 1):
        if octave:
            check()
            # The binomial filter of pyrDown has a standard deviation of one pixel.
            reduced, blur = np.asarray(cv2.pyrDown(reduced)), math.hypot(blur, 1) / 2
        places = working / 2**octave  # pixel 0 stays at pixel 0
        for level in np.unique(levels[octaves == octave]):
            rows = np.flatnonzero(levels == level)
            wanted = 2.0 ** (level / 2 - octave)
            added = math.sqrt(max(wanted**2 - blur**2, 0.25))
            for part in _by_tile(places[rows]):
                check()
                angles[rows[part]] = _directions_at(reduced, places[rows[part]], wanted, added)
    return angles


def _by_tile(xy: NDArray[np.float64]) -> Iterator[NDArray[np.intp]]:
    """Yield the numbers of the points in each tile that holds any."""
    tiles = np.floor(xy / _TILE).astype(np.int64)
    order = np.lexsort(tiles.T)
    is_first = np.any(np.diff(tiles[order], axis=0), axis=1)
    yield from np.split(order, np.flatnonzero(is_first) + 1)


def _directions_at(
    grey: NDArray[np.uint8], xy: NDArray[np.float64], sigma: float, blur: float
) -> Float32:
    """Return the directions at points of one tile, of a blur of `sigma` of which `blur` is left."""
    first = np.maximum(np.floor(xy.min(axis=0)).astype(int) - _MARGIN, 0)
    last = np.ceil(xy.max(axis=0)).astype(int) + _MARGIN
    part = grey[first[1] : last[1] + 1, first[0] : last[0] + 1]
    blurred = cv2.GaussianBlur(part.astype(np.float32), (0, 0), blur)
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
    return _peak(_smoothed(histogram.astype(np.float64)))


def _smoothed(histogram: NDArray[np.float64]) -> NDArray[np.float64]:
    kernel = np.array([1, 4, 6, 4, 1]) / 16
    shifted = [k * np.roll(histogram, n - 2, axis=1) for n, k in enumerate(kernel)]
    return np.asarray(np.sum(shifted, axis=0))


def _peak(histogram: NDArray[np.float64]) -> Float32:
    """Return the angle of the highest bin, interpolated by a parabola through its neighbours."""
    rows, top = np.arange(len(histogram)), histogram.argmax(axis=1)
    before, after = histogram[rows, (top - 1) % _BINS], histogram[rows, (top + 1) % _BINS]
    curve = before - 2 * histogram[rows, top] + after
    shift = np.where(curve < 0, 0.5 * (before - after) / np.minimum(curve, -1e-12), 0.0)
    return np.asarray((top + 0.5 + shift) * 2 * np.pi / _BINS % (2 * np.pi), np.float32)


def _array(values: Any, what: str) -> Float32:
    try:
        raw = np.asarray(values)
        if raw.dtype.kind not in "fiu":  # complex numbers and dates would become floats as well
            raise ValueError(f"{raw.dtype} are not real numbers")
        array = raw.astype(np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidParameter(f"{what} must be numbers") from error
    if not np.isfinite(array).all():
        raise InvalidParameter(f"{what} must be finite numbers")
    return array
