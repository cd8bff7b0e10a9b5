"""Check the structure of an encoded image before a decoder sees it.

Decoders trust the structure: Pillow reads a JPEG's fill bytes and a PNG's empty chunks one by one,
and libjpeg decodes as many scans as there are, each over the whole image. A file of a few hundred
kilobytes then takes minutes. Everything here is bounded, and only looks at the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from matchserve.errors import CorruptImage, ImageTooLarge, UnsupportedFormat

Encoded = bytes | bytearray | memoryview
"""An encoded image."""

MAX_SCANS = 100
"""Maximum number of scans of a JPEG; encoders write about ten."""
MAX_JPEG_SEGMENTS = 4096
"""Maximum number of segments of a JPEG; 20 MB hold 305 of the largest ones."""
MAX_STRAY_BYTES = 4096
"""Maximum number of bytes between the segments before a JPEG's first scan."""
MAX_PNG_HEAD_CHUNKS = 1024
"""Maximum number of chunks before a PNG's pixels."""
MAX_PNG_CHUNKS = 65_536
"""Maximum number of chunks of a PNG; 200 MB hold 25,000 of the usual 8 kB."""
MAX_WEBP_CHUNKS = 65_536
"""Maximum number of chunks of a WebP, of which a frame of an animation is one."""
MAX_TIFF_TAGS = 512
"""Maximum number of tags of a TIFF's first image."""

_SOI, _EOI, _SOS, _TEM = 0xD8, 0xD9, 0xDA, 0x01
_PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
_NOT_SOF = (0xC4, 0xC8, 0xCC)  # DHT, JPG and DAC lie between the SOF markers
_APP0, _APP1, _APP14, _APP15, _COMMENT = 0xE0, 0xE1, 0xEE, 0xEF, 0xFE
# All but JFIF and Adobe's colour transform, which decide the pixels.
_METADATA_SEGMENTS = {*range(_APP0, _APP15 + 1), _COMMENT} - {_APP0, _APP14}
_BLOCK = 1 << 16
_TIFF_TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8,
                    13: 4, 16: 8, 17: 8, 18: 8}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Header:
    """The format of an encoded image, and its size (width, height) if the header was read here."""

    format: str
    size: tuple[int, int] | None = None


def read_header(data: Encoded, formats: tuple[str, ...]) -> Header:
    """Check the structure of an encoded image and return its format and size.

    Raises:
        UnsupportedFormat: the bytes do not begin like one of `formats`.
        CorruptImage: the structure is damaged or has too many parts.
        ImageTooLarge: decoding would take too long.
    """
    view = memoryview(data).cast("B")
    name = _format_of(bytes(view[:16]))
    if name not in formats:
        raise UnsupportedFormat(f"not a {', '.join(formats)} image")
    try:
        return Header(name, _CHECKS[name](view))
    except (IndexError, struct.error) as error:
        raise CorruptImage("the image's header is cut off") from error


@dataclass(frozen=True, slots=True)
class JpegFrame:
    """How a JPEG is coded: whether in several scans, and the blocks of each component in an MCU."""

    is_progressive: bool
    blocks: tuple[int, ...]


def jpeg_frame(data: Encoded) -> JpegFrame:
    """Return how a JPEG is coded that `read_header` accepted."""
    view = memoryview(data).cast("B")
    scans, frame = 0, JpegFrame(is_progressive=False, blocks=(1,))
    for marker, start, end in _jpeg_segments(view):
        scans += marker == _SOS
        if scans > 1:  # also a baseline decoder holds the coefficients of several scans
            return JpegFrame(is_progressive=True, blocks=frame.blocks)
        if 0xC0 <= marker <= 0xCF and marker not in _NOT_SOF:
            factors = bytes(view[start + 11 : end : 3])[: view[start + 9]]
            blocks = tuple(max(1, factor >> 4) * max(1, factor & 15) for factor in factors)
            frame = JpegFrame(is_progressive=marker in _PROGRESSIVE, blocks=blocks)
    return frame


def jpeg_parts(data: Encoded) -> tuple[Encoded, dict[str, bytes]]:
    """Split a JPEG into what decides its pixels, and its first EXIF and XMP data.

    Pillow parses some metadata in Python, block by block: 20 MB of it take seconds.
    """
    view = memoryview(data).cast("B")
    kept: list[memoryview] = [view[:2]]
    metadata: dict[str, bytes] = {}
    for marker, start, end in _jpeg_segments(view):
        if marker == _SOS:
            kept.append(view[start:])
            break
        if marker == _APP1:
            for name, prefix in (("exif", b"Exif\0\0"), ("xmp", b"http://ns.adobe.com/xap/1.0/\0")):
                if view[start + 4 : start + 4 + len(prefix)] == prefix:
                    metadata.setdefault(name, bytes(view[start + 4 + len(prefix) : end]))
        elif marker not in _METADATA_SEGMENTS:
            kept.append(view[start:end])
    return b"".join(kept), metadata


def png_exif(data: Encoded) -> bytes:
    """Return the EXIF data of a PNG that `read_header` accepted; they may follow the pixels."""
    view = memoryview(data).cast("B")
    position = 8
    while position + 8 <= len(view):
        length, name = struct.unpack_from(">I4s", view, position)
        if name == b"eXIf":
            return bytes(view[position + 8 : position + 8 + length])
        position += 12 + int(length)
    return b""


def _format_of(start: bytes) -> str:
    if start.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return "WEBP"
    if start[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "TIFF"
    return ""


def _check_jpeg(view: memoryview) -> tuple[int, int]:
    size: tuple[int, int] | None = None
    scans = 0
    for marker, start, _ in _jpeg_segments(view):
        if 0xC0 <= marker <= 0xCF and marker not in _NOT_SOF:
            if size is not None:
                raise CorruptImage("the JPEG has more than one frame header")
            height, width = struct.unpack_from(">HH", view, start + 5)
            size = (width, height)
        scans += marker == _SOS
        if scans > MAX_SCANS:
            raise ImageTooLarge(
                f"the JPEG has more than {MAX_SCANS} scans", limit=MAX_SCANS, value=scans
            )
    if size is None:
        raise CorruptImage("the JPEG has no frame header")
    return size


def _jpeg_segments(view: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, end) of each segment up to the end of the image."""
    position, stray, is_in_scan = 2, 0, False
    for _ in range(MAX_JPEG_SEGMENTS):
        at = _next_marker(view, position)
        stray += 0 if is_in_scan else min(at, len(view)) - position
        if stray > MAX_STRAY_BYTES:
            raise CorruptImage("the JPEG has too many bytes between its segments")
        if at + 1 >= len(view) or view[at + 1] == _EOI:
            return
        marker = view[at + 1]
        if marker in (_SOI, _TEM):
            position = at + 2
        else:
            if at + 4 > len(view):
                return
            length = struct.unpack_from(">H", view, at + 2)[0]
            if length < 2:
                raise CorruptImage("a segment of the JPEG has no length")
            position = at + 2 + length
            yield marker, at, min(position, len(view))
        is_in_scan = is_in_scan or marker == _SOS
    raise CorruptImage(f"the JPEG has more than {MAX_JPEG_SEGMENTS} segments")


def _next_marker(view: memoryview, position: int) -> int:
    """Return where the next marker is: FF and a byte that is no fill, stuffing or restart."""
    while position + 1 < len(view):
        block = np.frombuffer(view[position : position + _BLOCK + 1], np.uint8)
        first, second = block[:-1], block[1:]
        is_marker = (first == 0xFF) & (second != 0xFF) & (second != 0) & ((second & 0xF8) != 0xD0)
        index = int(is_marker.argmax())
        if is_marker[index]:
            return position + index
        position += _BLOCK
    return len(view)


def _check_png(view: memoryview) -> tuple[int, int]:
    width, height = struct.unpack_from(">II", view, 16)
    if bytes(view[12:16]) != b"IHDR":
        raise CorruptImage("the PNG does not begin with its header")
    position, count, has_pixels = 8, 0, False
    while position + 8 <= len(view):
        has_pixels = has_pixels or bytes(view[position + 4 : position + 8]) == b"IDAT"
        count += 1
        if count > (MAX_PNG_CHUNKS if has_pixels else MAX_PNG_HEAD_CHUNKS):
            raise CorruptImage("the PNG has too many chunks")
        position += 12 + int(struct.unpack_from(">I", view, position)[0])
    return width, height


def _check_webp(view: memoryview) -> tuple[int, int]:
    position = 12
    for _ in range(MAX_WEBP_CHUNKS):
        if position + 8 > len(view):
            return _webp_size(view)
        length = int(struct.unpack_from("<I", view, position + 4)[0])
        position += 8 + length + length % 2
    raise CorruptImage("the WebP has too many chunks")


def _webp_size(view: memoryview) -> tuple[int, int]:
    kind = bytes(view[12:16])
    if kind == b"VP8X":
        return (
            1 + int.from_bytes(view[24:27], "little"),
            1 + int.from_bytes(view[27:30], "little"),
        )
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", view, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", view, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise CorruptImage("the WebP does not begin with an image")


def _check_tiff(view: memoryview) -> None:
    """Bound the number of tags and the bytes that they point to, which may overlap."""
    order = "<" if bytes(view[:2]) == b"II" else ">"
    is_big = 43 in (view[2], view[3])
    start = struct.unpack_from(order + ("Q" if is_big else "I"), view, 8 if is_big else 4)[0]
    count = struct.unpack_from(order + ("Q" if is_big else "H"), view, start)[0]
    if count > MAX_TIFF_TAGS:
        raise CorruptImage(f"the TIFF has more than {MAX_TIFF_TAGS} tags")
    entry, first = (20, start + 8) if is_big else (12, start + 2)
    total = 0
    for position in range(first, first + entry * count, entry):
        kind, values = struct.unpack_from(order + ("HQ" if is_big else "HI"), view, position + 2)
        total += values * _TIFF_TYPE_BYTES.get(kind, 0)
    if total > len(view):
        raise CorruptImage("the TIFF's tags hold more bytes than the file")


_CHECKS = {"JPEG": _check_jpeg, "PNG": _check_png, "WEBP": _check_webp, "TIFF": _check_tiff}
