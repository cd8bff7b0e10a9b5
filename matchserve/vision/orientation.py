"""Read the EXIF orientation without parsing the rest of the EXIF data.

Pillow reads every tag with all bytes that it points to. Tags may overlap, so 20 MB of them point to
hundreds of gigabytes.
"""

from __future__ import annotations

import re
import struct
from typing import Any

ORIENTATION_TAG = 0x0112
MAX_EXIF_TAGS = 1000

_INTEGER_TYPES = {1: "B", 3: "H", 4: "I", 8: "h", 9: "i"}
_XMP = re.compile(rb"tiff:Orientation(?:=\"|>)([0-9])")
MAX_XMP_BYTES = 1 << 20


def read_orientation(info: dict[Any, Any]) -> int:
    """Return the orientation, 1 to 8, from the metadata of a picture; 1 when absent or damaged."""
    turn = _from_exif(_exif_bytes(info))
    if turn is None:
        turn = _from_xmp(info)
    return turn if turn is not None and 1 <= turn <= 8 else 1


def _exif_bytes(info: dict[Any, Any]) -> bytes:
    exif = info.get("exif")
    if isinstance(exif, bytes):
        return exif
    text = info.get("Raw profile type exif")  # how ImageMagick stores EXIF in a PNG
    if not isinstance(text, str):
        return b""
    try:
        return bytes.fromhex("".join(text.split("\n")[3:]))
    except ValueError:
        return b""


def _from_exif(exif: bytes) -> int | None:
    """Return the value of the orientation tag in the first directory, or None."""
    exif = exif.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return None
    try:
        start = struct.unpack_from(order + "I", exif, 4)[0]
        count = struct.unpack_from(order + "H", exif, start)[0]
        for position in range(start + 2, start + 2 + 12 * min(count, MAX_EXIF_TAGS), 12):
            tag, kind, values = struct.unpack_from(order + "HHI", exif, position)
            if tag == ORIENTATION_TAG and values == 1 and kind in _INTEGER_TYPES:
                return int(struct.unpack_from(order + _INTEGER_TYPES[kind], exif, position + 8)[0])
    except struct.error:
        return None
    return None


def _from_xmp(info: dict[Any, Any]) -> int | None:
    xmp = info.get("XML:com.adobe.xmp") or info.get("xmp") or b""
    data = xmp.encode() if isinstance(xmp, str) else bytes(xmp)
    tag = _XMP.search(data[:MAX_XMP_BYTES])
    return int(tag[1]) if tag else None
