"""Bytes to a grey image, without trusting the bytes.

Only Pillow ever sees bytes from outside, only for the formats below, and never a pixel before
the size in the header was checked: a 20 kB PNG can declare 169 megapixels.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageFile, UnidentifiedImageError

from matchserve.errors import (
    CorruptImage,
    EmptyImage,
    ImageTooLarge,
    ImageTooSmall,
    UnsupportedFormat,
)
from matchserve.limits import LIBRARY_LIMITS, Limits
from matchserve.types import Image, UInt8

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF")

ExifPolicy = Literal["apply", "ignore"]

_EXIF_ORIENTATION = 0x0112
# Of the eight orientations only the two quarter turns are not their own inverse.
_INVERSE_TURN = {6: 8, 8: 6}
_SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I")


def decode(
    data: bytes | bytearray | memoryview,
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
        ImageError: whatever is wrong with the bytes, as one of its subclasses.
    """
    _check_bytes(data, limits)
    with _typed_errors(limits), _open(data) as picture:
        check_size(picture.size, limits)
        _check_sums(data, picture)
        turned = _tiff_turn(picture)
        grey = _to_grey(picture)
        # After the pixels: Pillow reads a PNG's pixels to find its EXIF, and would hide a failure.
        grey = _oriented(grey, picture, turned, exif)
    return from_array(grey, max_side=max_side, limits=limits)


def decode_colour(
    data: bytes | bytearray | memoryview,
    *,
    exif: ExifPolicy = "apply",
    max_side: int,
    limits: Limits = LIBRARY_LIMITS,
) -> UInt8:
    """The image in colour, (H, W, 3) RGB, reduced to `max_side`: for pictures, not for matching.

    Raises:
        ImageError: whatever is wrong with the bytes, as one of its subclasses.
    """
    _check_bytes(data, limits)
    with _typed_errors(limits), _open(data) as picture:
        check_size(picture.size, limits)
        turned = _tiff_turn(picture)
        if picture.mode in _SIXTEEN_BIT_MODES:
            rgb = np.repeat(_to_grey(picture)[:, :, None], 3, axis=2)
        else:
            picture.thumbnail((max_side, max_side))
            rgb = np.array(_on_white(picture.convert("RGBA")), np.uint8)
        rgb = _oriented(rgb, picture, turned, exif)
    return np.ascontiguousarray(_reduced(rgb, max_side))


def read_size(
    data: bytes | bytearray | memoryview,
    *,
    formats: tuple[str, ...] = FORMATS,
    limits: Limits = LIBRARY_LIMITS,
) -> tuple[int, int]:
    """The stored size (width, height) of an image that may be decoded, from its header alone.

    Raises:
        ImageError: it is of another format than `formats`, or out of the limits.
    """
    _check_bytes(data, limits)
    with _typed_errors(limits), _open(data) as picture:
        if _format(picture) not in formats:
            raise UnsupportedFormat(f"not a {', '.join(formats)} image")
        check_size(picture.size, limits)
        return picture.size


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
    eight_bit = _upper_eight_bits(array) if array.dtype == np.uint16 else array
    if eight_bit.ndim == 3:
        # Pillow, not OpenCV: their greys differ by rounding, and a file must equal its array.
        eight_bit = np.array(Pillow.fromarray(eight_bit).convert("L"), np.uint8)
    reduced = _reduced(eight_bit, max_side)
    check_size((reduced.shape[1], reduced.shape[0]), limits)
    return Image(reduced, size)


def check_size(size: tuple[int, int], limits: Limits) -> None:
    """Refuse an image whose sides or area are out of the limits.

    Raises:
        ImageTooLarge: too many pixels, or a side too long.
        ImageTooSmall: a side too short to hold a keypoint.
    """
    width, height = size
    if max(size) > limits.max_side:
        raise ImageTooLarge(
            f"the image is {width}x{height}, no side may exceed {limits.max_side} pixels",
            limit=limits.max_side,
            value=max(size),
        )
    if width * height > limits.max_pixels:
        raise ImageTooLarge(
            f"the image has {width * height / 1e6:.1f} megapixels ({width}x{height}), at most "
            f"{limits.max_pixels / 1e6:.1f} are allowed",
            limit=limits.max_pixels,
            value=width * height,
        )
    if min(size) < limits.min_side:
        raise ImageTooSmall(
            f"the image is {width}x{height}, no side may be under {limits.min_side} pixels",
            limit=limits.min_side,
            value=min(size),
        )


def _check_bytes(data: bytes | bytearray | memoryview, limits: Limits) -> None:
    if len(data) == 0:
        raise EmptyImage("the image is empty (0 bytes)")
    if len(data) > limits.max_image_bytes:
        raise ImageTooLarge(
            f"the image has {len(data)} bytes, at most {limits.max_image_bytes} are allowed",
            limit=limits.max_image_bytes,
            value=len(data),
        )


@contextlib.contextmanager
def _typed_errors(limits: Limits) -> Iterator[None]:
    """Turn whatever Pillow's plugins raise into one of our image errors."""
    try:
        yield
    except (EmptyImage, UnsupportedFormat, ImageTooLarge, ImageTooSmall, CorruptImage):
        raise
    except UnidentifiedImageError as error:
        raise UnsupportedFormat(f"not a {', '.join(FORMATS)} image") from error
    except (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning) as error:
        raise ImageTooLarge(
            f"the image declares more than the allowed {limits.max_pixels / 1e6:.1f} megapixels",
            limit=limits.max_pixels,
        ) from error
    except MemoryError as error:
        raise ImageTooLarge("the image does not fit in memory") from error
    except Exception as error:  # plugins let SyntaxError, ValueError, struct.error out
        raise CorruptImage(f"the image is damaged: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _open(data: bytes | bytearray | memoryview) -> ImageFile.ImageFile:
    """Read the header only."""
    try:
        return Pillow.open(io.BytesIO(data), formats=FORMATS)
    except (UnidentifiedImageError, Pillow.DecompressionBombError, MemoryError):
        raise
    except OSError as error:
        raise CorruptImage(f"the image's header is damaged: {_first_line(error)}") from error


def _check_sums(data: bytes | bytearray | memoryview, picture: ImageFile.ImageFile) -> None:
    """Check a PNG's checksums, which decoding alone does not."""
    if picture.format == "PNG":
        with _open(data) as again:
            again.verify()


def _exif_turn(picture: ImageFile.ImageFile) -> int:
    """The EXIF orientation, 1 to 8; 1 when absent, damaged or out of range."""
    try:
        turn = picture.getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # noqa: BLE001  a damaged tag must not cost the image
        return 1
    return turn if turn in range(1, 9) else 1


def _to_grey(picture: ImageFile.ImageFile) -> UInt8:
    """Decode the pixels as 8-bit grey, whatever their mode."""
    if picture.mode in _SIXTEEN_BIT_MODES:
        return _upper_eight_bits(np.asarray(picture).astype(np.int64).clip(0, None))
    if picture.mode in ("F", "LAB", "HSV"):
        raise UnsupportedFormat(f"pixels of mode {picture.mode} are not read; send grey or RGB")
    # The Y channel of a JPEG is its BT.601 grey: no colour conversion needed.
    if _format(picture) == "JPEG" and picture.mode == "RGB":
        picture.draft("L", picture.size)
    if picture.has_transparency_data:
        return np.array(_on_white(picture.convert("RGBA")).convert("L"), np.uint8)
    return np.array(picture.convert("L"), np.uint8)


def _upper_eight_bits(array: NDArray[Any]) -> UInt8:
    """Eight bits from the highest one in use: many cameras put ten or twelve into sixteen."""
    unused = max(0, int(array.max(initial=0)).bit_length() - 8)
    return (array >> unused).astype(np.uint8)


def _on_white(picture: Pillow.Image) -> Pillow.Image:
    """Lay a transparent picture on white, as a page would show it."""
    white = Pillow.new("RGBA", picture.size, "white")
    return Pillow.alpha_composite(white, picture).convert("RGB")


def _format(picture: ImageFile.ImageFile) -> str | None:
    """The file format; a JPEG with further pictures behind it (MPO, as phones write) is a JPEG."""
    return "JPEG" if picture.format == "MPO" else picture.format


def _tiff_turn(picture: ImageFile.ImageFile) -> int:
    """The orientation that Pillow will undo by itself: it does so for TIFF alone."""
    return _exif_turn(picture) if picture.format == "TIFF" else 1


def _oriented(pixels: UInt8, picture: ImageFile.ImageFile, turned: int, exif: ExifPolicy) -> UInt8:
    """Loaded pixels as a viewer shows them, or as they are stored."""
    if exif == "apply":
        return pixels if turned != 1 else _upright(pixels, _exif_turn(picture))
    return _upright(pixels, _INVERSE_TURN.get(turned, turned))


def _upright(pixels: UInt8, turn: int) -> UInt8:
    """Undo an EXIF orientation."""
    if turn in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    flip_rows, flip_columns = turn in (3, 4, 7, 8), turn in (2, 3, 6, 7)
    return pixels[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1]


def _reduced(pixels: UInt8, max_side: int | None) -> UInt8:
    """Shrink so that the longer side is at most `max_side`; never enlarge."""
    rows, columns = pixels.shape[:2]
    if max_side is None or max(rows, columns) <= max_side:
        return pixels
    scale = max_side / max(rows, columns)
    size = (max(1, round(columns * scale)), max(1, round(rows * scale)))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)
