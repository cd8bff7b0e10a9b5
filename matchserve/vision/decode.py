"""Decode an image to grey or colour, reduced to a working size; or take it from an array."""

from __future__ import annotations

from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from matchserve.clock import Deadline
from matchserve.errors import UnsupportedFormat
from matchserve.limits import LIBRARY_LIMITS, Limits
from matchserve.types import Image, UInt8
from matchserve.vision.headers import Encoded
from matchserve.vision.pixels import (
    FORMATS,
    DecodeOptions,
    ExifPolicy,
    check_size,
    decode_pixels,
    read_size,
    upper_eight_bits,
)

__all__ = [
    "FORMATS",
    "Decoder",
    "ExifPolicy",
    "InProcessDecoder",
    "decode",
    "decode_colour",
    "from_array",
    "read_size",
    "reduced",
]


class Decoder(Protocol):
    """Decodes images for a matcher: in this process, or in one that can be killed."""

    def decode(
        self, data: Encoded, *, exif: ExifPolicy, max_side: int | None, deadline: Deadline
    ) -> Image:
        """Decode an image to grey, as `decode` does, before the deadline passes."""
        ...


class InProcessDecoder:
    """Decodes in this process, where nothing can stop a decoder once it runs."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def decode(
        self, data: Encoded, *, exif: ExifPolicy, max_side: int | None, deadline: Deadline
    ) -> Image:
        """Decode an image to grey; the deadline is checked once, before."""
        deadline.check()
        return decode(data, exif=exif, max_side=max_side, limits=self._limits)


def decode(
    data: Encoded,
    *,
    exif: ExifPolicy = "apply",
    max_side: int | None = None,
    limits: Limits = LIBRARY_LIMITS,
) -> Image:
    """Decode the first frame of a JPEG, PNG, WebP or TIFF to 8-bit grey.

    With `exif="apply"` the image is turned as a viewer would show it, and `size` and all later
    coordinates are in that upright image; with `"ignore"` they are in the stored raster. Sixteen
    bits are reduced to the eight from the highest in use; transparency is laid on white. With
    `max_side` the working image is reduced so that its longer side is at most that; coordinates
    are not.

    Raises:
        ImageError: the bytes cannot be used; the subclass says why.
    """
    grey = decode_pixels(data, DecodeOptions(exif, limits))
    return from_array(grey, max_side=max_side, limits=limits)


def decode_colour(
    data: Encoded,
    *,
    exif: ExifPolicy = "apply",
    max_side: int,
    limits: Limits = LIBRARY_LIMITS,
) -> UInt8:
    """Decode to (H, W, 3) RGB, reduced to `max_side`: for pictures, not for matching.

    Raises:
        ImageError: the bytes cannot be used; the subclass says why.
    """
    rgb = decode_pixels(data, DecodeOptions(exif, limits, colour_side=max_side))
    return np.ascontiguousarray(reduced(rgb, max_side))


def from_array(
    array: NDArray[Any], *, max_side: int | None = None, limits: Limits = LIBRARY_LIMITS
) -> Image:
    """Wrap an array as an image: uint8 or uint16, (H, W) grey or (H, W, 3) RGB.

    Raises:
        ImageError: the type or shape is another, or the size is out of the limits.
    """
    if array.dtype not in (np.uint8, np.uint16):
        raise UnsupportedFormat(f"image arrays are uint8 or uint16, not {array.dtype}")
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3):
        raise UnsupportedFormat(f"image arrays are (H, W) or (H, W, 3), not {array.shape}")
    size = (array.shape[1], array.shape[0])
    check_size(size, limits)
    eight_bit = upper_eight_bits(array) if array.dtype == np.uint16 else array
    if eight_bit.ndim == 3:
        # Pillow, not OpenCV: their greys differ by rounding, and a file must equal its array.
        eight_bit = np.array(Pillow.fromarray(eight_bit).convert("L"), np.uint8)
    working = reduced(eight_bit, max_side)
    check_size((working.shape[1], working.shape[0]), limits)
    return Image(working, size)


def reduced(pixels: UInt8, max_side: int | None) -> UInt8:
    """Shrink pixels so that the longer side is at most `max_side`; never enlarge."""
    rows, columns = pixels.shape[:2]
    if max_side is None or max(rows, columns) <= max_side:
        return pixels
    scale = max_side / max(rows, columns)
    size = (max(1, round(columns * scale)), max(1, round(rows * scale)))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)
