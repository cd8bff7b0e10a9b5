"""Decode the pixels of an encoded image with Pillow, without trusting the bytes.

Only Pillow ever sees bytes from outside, only for the formats below, and never before the
structure and the size in the header were checked: a 20 kB PNG can declare 169 megapixels. This
module does not import OpenCV, so that a decoder process stays small.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

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
from matchserve.types import UInt8
from matchserve.vision.exif import exif_bytes, read_focal_px
from matchserve.vision.headers import Encoded, jpeg_parts, png_exif, read_header
from matchserve.vision.orientation import ORIENTATION_TAG, read_orientation

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF")

ExifPolicy = Literal["apply", "ignore"]

# Of the eight orientations only the two quarter turns are not their own inverse.
_INVERSE_TURN = {6: 8, 8: 6}
_BAND_PIXELS = 1 << 20
_SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I")


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How an image is decoded.

    With `colour_side` the pixels are RGB, and images larger than that side may be reduced to it.
    """

    exif: ExifPolicy = "apply"
    limits: Limits = LIBRARY_LIMITS
    formats: tuple[str, ...] = FORMATS
    colour_side: int | None = None


def decode_pixels(data: Encoded, options: DecodeOptions) -> UInt8:
    """Decode the first frame to (H, W) grey, or to (H, W, 3) RGB with `colour_side`.

    Raises:
        ImageError: the bytes cannot be used; the subclass says why.
    """
    limits = options.limits
    _check_bytes(data, limits)
    with typed_errors(limits):
        header = read_header(data, options.formats)
        if header.size is not None:
            check_size(header.size, limits)
        metadata: dict[Any, Any] = {}
        if header.format == "JPEG":
            data, metadata = jpeg_parts(data)
        with _open(data, header.format) as picture:
            check_size(picture.size, limits)
            _check_sums(data, picture)
            turned = _tiff_turn(picture)
            if options.colour_side is None:
                pixels = _to_grey(picture)
            else:
                pixels = _to_colour(picture, options.colour_side)
            # After the pixels: a PNG's EXIF may follow them.
            metadata = metadata or picture.info
            return _oriented(pixels, metadata, turned, options.exif)


def inspect(
    data: Encoded, *, formats: tuple[str, ...] = FORMATS, limits: Limits = LIBRARY_LIMITS
) -> tuple[str, tuple[int, int]]:
    """Return the format and the stored size (width, height) of an image, from its header alone.

    Raises:
        ImageError: the format is not one of `formats`, or the size is out of the limits.
    """
    _check_bytes(data, limits)
    with typed_errors(limits):
        header = read_header(data, formats)
        size = header.size
        if size is None:
            with _open(data, header.format) as picture:
                size = picture.size
        check_size(size, limits)
        return header.format, size


def exif_focal_px(data: Encoded, *, limits: Limits = LIBRARY_LIMITS) -> float | None:
    """Return the focal length in pixels of the stored image; None if EXIF does not say.

    Raises:
        ImageError: the bytes cannot be used; the subclass says why.
    """
    name, size = inspect(data, limits=limits)
    if name == "TIFF":  # EXIF data are such a file
        return read_focal_px(memoryview(data), size)
    with typed_errors(limits):
        if name == "JPEG":
            return read_focal_px(exif_bytes(dict(jpeg_parts(data)[1])), size)
        if name == "PNG" and (exif := png_exif(data)):
            return read_focal_px(exif, size)
        with _open(data, name) as picture:
            return read_focal_px(exif_bytes(dict(picture.info)), size)


def read_size(
    data: Encoded, *, formats: tuple[str, ...] = FORMATS, limits: Limits = LIBRARY_LIMITS
) -> tuple[int, int]:
    """Return the stored size like `inspect`."""
    return inspect(data, formats=formats, limits=limits)[1]


def check_size(size: tuple[int, int], limits: Limits) -> None:
    """Refuse an image whose sides or area are out of the limits.

    Raises:
        ImageTooLarge: too many pixels, or a side too long.
        ImageTooSmall: a side too short to hold a keypoint.
    """
    width, height = size
    if max(size) > limits.max_side:
        raise ImageTooLarge(
            f"the image is {width}x{height}, no side may exceed {limits.max_side} pixels: "
            f"reduce it to {_allowed_size(size, limits)} or less",
            limit=limits.max_side,
            value=max(size),
        )
    if width * height > limits.max_pixels:
        raise ImageTooLarge(
            f"the image has {width * height / 1e6:.1f} megapixels ({width}x{height}), at most "
            f"{limits.max_pixels / 1e6:.1f} are allowed: reduce it to "
            f"{_allowed_size(size, limits)} or less",
            limit=limits.max_pixels,
            value=width * height,
        )
    if min(size) < limits.min_side:
        raise ImageTooSmall(
            f"the image is {width}x{height}, no side may be under {limits.min_side} pixels",
            limit=limits.min_side,
            value=min(size),
        )


def _allowed_size(size: tuple[int, int], limits: Limits) -> str:
    """Return the largest allowed size of the same shape as text."""
    width, height = size
    scale = min(limits.max_side / max(size), math.sqrt(limits.max_pixels / (width * height)))
    return f"{max(1, math.floor(width * scale))}x{max(1, math.floor(height * scale))}"


def _check_bytes(data: Encoded, limits: Limits) -> None:
    if len(data) == 0:
        raise EmptyImage("the image is empty (0 bytes)")
    if len(data) > limits.max_image_bytes:
        raise ImageTooLarge(
            f"the image has {len(data)} bytes, at most {limits.max_image_bytes} are allowed",
            limit=limits.max_image_bytes,
            value=len(data),
        )


@contextlib.contextmanager
def typed_errors(limits: Limits) -> Iterator[None]:
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


def _open(data: Encoded, image_format: str) -> ImageFile.ImageFile:
    """Read the header only."""
    try:
        return Pillow.open(io.BytesIO(data), formats=(image_format,))
    except (UnidentifiedImageError, Pillow.DecompressionBombError, MemoryError):
        raise
    except OSError as error:
        raise CorruptImage(f"the image's header is damaged: {_first_line(error)}") from error


def _check_sums(data: Encoded, picture: ImageFile.ImageFile) -> None:
    """Check a PNG's checksums, which decoding alone does not."""
    if picture.format == "PNG":
        with _open(data, "PNG") as again:
            again.verify()


def _to_grey(picture: ImageFile.ImageFile) -> UInt8:
    """Decode the pixels as 8-bit grey, whatever their mode."""
    if picture.mode in ("F", "LAB", "HSV"):
        raise UnsupportedFormat(f"pixels of mode {picture.mode} are not read; send grey or RGB")
    # The Y channel of a JPEG is its BT.601 grey: no colour conversion needed.
    if _format(picture) == "JPEG" and picture.mode == "RGB":
        picture.draft("L", picture.size)
    picture.load()  # the size of a TIFF may change here
    grey = np.empty((picture.height, picture.width), np.uint8)
    if picture.mode in _SIXTEEN_BIT_MODES:
        highest = max(int(_sixteen_bits(band).max(initial=0)) for _, band in _bands(picture))
        for top, band in _bands(picture):
            grey[top : top + band.height] = upper_eight_bits(_sixteen_bits(band), highest)
        return grey
    is_transparent = picture.has_transparency_data
    for top, band in _bands(picture):
        opaque = _on_white(band.convert("RGBA")) if is_transparent else band
        grey[top : top + band.height] = np.asarray(opaque.convert("L"))
    return grey


def _bands(picture: Pillow.Image, multiple: int = 1) -> Iterator[tuple[int, Pillow.Image]]:
    """Cut a picture into bands of rows: a conversion of the whole would need several copies.

    The number of rows of all bands but the last is a multiple of `multiple`.
    """
    rows = max(1, _BAND_PIXELS // (multiple * picture.width)) * multiple
    for top in range(0, picture.height, rows):
        yield top, picture.crop((0, top, picture.width, min(picture.height, top + rows)))


def _sixteen_bits(band: Pillow.Image) -> NDArray[np.int64]:
    return np.asarray(band).astype(np.int64).clip(0, None)


def _to_colour(picture: ImageFile.ImageFile, max_side: int) -> UInt8:
    """Decode the pixels as RGB, reduced on the way: a large picture in colour is not held whole."""
    if picture.mode in _SIXTEEN_BIT_MODES:
        small = Pillow.fromarray(_to_grey(picture))
        small.thumbnail((max_side, max_side))
        return np.array(small.convert("RGB"), np.uint8)
    target = 2 * max_side / max(picture.size)
    if target < 1:  # the decoder of a JPEG can reduce
        picture.draft(None, (int(picture.width * target), int(picture.height * target)))
    picture.load()
    factor = max(1, max(picture.size) // max_side)
    small = Pillow.new("RGB", (-(-picture.width // factor), -(-picture.height // factor)))
    for top, band in _bands(picture, factor):
        small.paste(_on_white(band.convert("RGBA")).reduce(factor), (0, top // factor))
    shrink = min(1.0, max_side / max(picture.size))
    size = (max(1, round(picture.width * shrink)), max(1, round(picture.height * shrink)))
    # The last block of a side may stand for fewer pixels than the others.
    box = (0, 0, picture.width / factor, picture.height / factor)
    return np.array(small.resize(size, Pillow.Resampling.BICUBIC, box), np.uint8)


def upper_eight_bits(array: NDArray[Any], highest: int | None = None) -> UInt8:
    """Eight bits from the highest one in use: many cameras put ten or twelve into sixteen.

    `highest` is the largest value of the whole image if `array` is a part of it.
    """
    highest = int(array.max(initial=0)) if highest is None else highest
    return (array >> max(0, highest.bit_length() - 8)).astype(np.uint8)


def _on_white(picture: Pillow.Image) -> Pillow.Image:
    """Lay a transparent picture on white, as a page would show it."""
    white = Pillow.new("RGBA", picture.size, "white")
    return Pillow.alpha_composite(white, picture).convert("RGB")


def _format(picture: ImageFile.ImageFile) -> str | None:
    """The file format; a JPEG with further pictures behind it (MPO, as phones write) is a JPEG."""
    return "JPEG" if picture.format == "MPO" else picture.format


def _tiff_turn(picture: ImageFile.ImageFile) -> int:
    """Return the orientation that Pillow will undo by itself: it does so for TIFF alone."""
    if picture.format != "TIFF":
        return 1
    turn = picture.getexif().get(ORIENTATION_TAG, 1)
    return turn if turn in range(1, 9) else 1


def _oriented(pixels: UInt8, metadata: dict[Any, Any], turned: int, exif: ExifPolicy) -> UInt8:
    """Return loaded pixels as a viewer shows them, or as they are stored."""
    if exif == "apply":
        return pixels if turned != 1 else _upright(pixels, read_orientation(metadata))
    return _upright(pixels, _INVERSE_TURN.get(turned, turned))


def _upright(pixels: UInt8, turn: int) -> UInt8:
    """Undo an EXIF orientation."""
    if turn in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    flip_rows, flip_columns = turn in (3, 4, 7, 8), turn in (2, 3, 6, 7)
    return pixels[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1]
