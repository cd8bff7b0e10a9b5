"""Masks: parts of an image in which no keypoints are taken, such as the sky or a logo."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import InvalidParameter
from matchserve.types import Bool, Float64, UInt8

MAX_SHAPES = 64
MAX_CORNERS = 512
"""Maximum number of corners of all shapes of a mask: each corner is compared with each keypoint."""
DARK = 128
"""Pixels of a mask image below this grey value are ignored; JPEG makes black not quite black."""
_ASPECT_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """What is ignored in an image: the inside of `shapes`, and where `image` is dark.

    Shapes are polygons (N, 2) in pixels of the image as sent. `image` (H, W) covers the whole
    image, in any resolution of the same aspect ratio.
    """

    shapes: tuple[Float64, ...] = ()
    image: UInt8 | None = None

    def __post_init__(self) -> None:
        if self.image is not None and (self.image.ndim != 2 or self.image.dtype != np.uint8):
            raise InvalidParameter("the image of a mask must be uint8 grey values (H, W)")

    @property
    def key(self) -> bytes:
        """Digest of the content: equal for equal masks."""
        digest = hashlib.sha256()
        arrays: list[NDArray[Any]] = [*self.shapes]
        arrays += [] if self.image is None else [self.image]
        for array in arrays:
            digest.update(repr((array.shape, array.dtype.str)).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.digest()

    def allows(self, xy: NDArray[Any], size: tuple[int, int]) -> Bool:
        """Return which points (N, 2) of an image of this size are not ignored.

        Raises:
            InvalidParameter: the mask image has another aspect ratio than the image.
        """
        allowed = np.ones(len(xy), np.bool_)
        for polygon in self.shapes:
            allowed &= ~_is_inside(np.asarray(xy, np.float64), polygon)
        if self.image is not None:
            allowed &= self._is_bright(xy, size)
        return allowed

    def _is_bright(self, xy: NDArray[Any], size: tuple[int, int]) -> Bool:
        if self.image is None:
            raise ValueError("the mask has no image")
        rows, columns = self.image.shape
        (width, height) = size
        if abs(columns * height / (rows * width) - 1) > _ASPECT_TOLERANCE:
            raise InvalidParameter(
                f"the mask has {columns}x{rows} pixels and the image {width}x{height}: they must "
                "have the same aspect ratio"
            )
        x = np.clip((xy[:, 0] + 0.5) * columns / width, 0, columns - 1).astype(np.intp)
        y = np.clip((xy[:, 1] + 0.5) * rows / height, 0, rows - 1).astype(np.intp)
        return np.asarray(self.image[y, x] >= DARK)


def parse_shapes(values: Sequence[Any]) -> tuple[Float64, ...]:
    """Return polygons from rectangles (x0, y0, x1, y1) and lists of at least three corners (x, y).

    Raises:
        InvalidParameter: a shape is neither, or there are too many.
    """
    if len(values) > MAX_SHAPES:
        raise InvalidParameter(
            f"{len(values)} ignored shapes, at most {MAX_SHAPES} are allowed",
            limit=MAX_SHAPES,
            value=len(values),
        )
    shapes = tuple(_polygon(value) for value in values)
    corners = sum(map(len, shapes))
    if corners > MAX_CORNERS:
        raise InvalidParameter(
            f"the ignored shapes have {corners} corners, at most {MAX_CORNERS} are allowed",
            limit=MAX_CORNERS,
            value=corners,
        )
    return shapes


def _polygon(value: Any) -> Float64:
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidParameter("an ignored shape must be made of numbers") from error
    if array.shape == (4,):
        x0, y0, x1, y1 = array
        array = np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
    if array.ndim != 2 or array.shape[1] != 2 or len(array) < 3 or not np.isfinite(array).all():
        raise InvalidParameter(
            "an ignored shape must be x0, y0, x1, y1 or at least three corners x, y"
        )
    return array


def _is_inside(xy: Float64, polygon: Float64) -> Bool:
    """Return which points are inside of a polygon, by the even-odd rule."""
    inside = np.zeros(len(xy), np.bool_)
    x, y = xy[:, 0], xy[:, 1]
    for (x0, y0), (x1, y1) in pairwise([*polygon, polygon[0]]):
        if y0 == y1:
            continue
        crosses = (y0 > y) != (y1 > y)
        inside ^= crosses & (x < x0 + (y - y0) * (x1 - x0) / (y1 - y0))
    return inside
