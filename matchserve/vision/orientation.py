"""Read the EXIF or XMP orientation without parsing the rest of the metadata."""

from __future__ import annotations

import re
from typing import Any

from matchserve.vision.exif import ORIENTATION_TAG as ORIENTATION_TAG
from matchserve.vision.exif import exif_bytes, read_numbers

_XMP = re.compile(rb"tiff:Orientation(?:=\"|>)([0-9])")
MAX_XMP_BYTES = 1 << 20


def read_orientation(info: dict[Any, Any]) -> int:
    """Return the orientation, 1 to 8, from the metadata of a picture; 1 when absent or damaged."""
    turn = read_numbers(exif_bytes(info)).get(ORIENTATION_TAG)
    if turn is None:
        turn = _from_xmp(info)
    return int(turn) if turn is not None and turn in range(1, 9) else 1


def _from_xmp(info: dict[Any, Any]) -> int | None:
    xmp = info.get("XML:com.adobe.xmp") or info.get("xmp") or b""
    data = xmp.encode() if isinstance(xmp, str) else bytes(xmp)
    tag = _XMP.search(data[:MAX_XMP_BYTES])
    return int(tag[1]) if tag else None
