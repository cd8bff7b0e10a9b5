"""Write TIFF files with the tags of GeoTIFF."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image as Pillow
from PIL import TiffImagePlugin

PIXEL_SCALE, TIEPOINT, TRANSFORMATION, GEO_KEYS = 33550, 33922, 34264, 34735
ORIENTATION = 274
UTM_33N = 32633


def write_geotiff(
    path: Path,
    grey: np.ndarray,
    corner: tuple[float, float],
    scale: float,
    *,
    orientation: int = 1,
) -> None:
    """Write an image whose upper left corner lies at `corner` of a map, north up."""
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags.tagtype[PIXEL_SCALE] = tags.tagtype[TIEPOINT] = 12
    tags[PIXEL_SCALE] = (scale, scale, 0.0)
    tags[TIEPOINT] = (0.0, 0.0, 0.0, *corner, 0.0)
    tags.tagtype[GEO_KEYS] = 3
    tags[GEO_KEYS] = geo_keys({1024: 1, 1025: 1, 3072: UTM_33N})
    tags[ORIENTATION] = orientation
    Pillow.fromarray(grey).save(path, tiffinfo=tags)


def geo_keys(keys: Mapping[int, int]) -> tuple[int, ...]:
    """Return a directory of keys with short values."""
    rows = [value for key, code in sorted(keys.items()) for value in (key, 0, 1, code)]
    return (1, 1, 0, len(keys), *rows)


def bare_tiff(
    tags: Mapping[int, Sequence[float]], *, order: str = "<", is_big: bool = False
) -> bytes:
    """Return the header and the tags of a TIFF without pixels; whole numbers are shorts."""
    offset_format, count_format = ("Q", "Q") if is_big else ("I", "H")
    head = 16 if is_big else 8
    entry_size = 20 if is_big else 12
    data_at = head + struct.calcsize(order + count_format) + entry_size * len(tags)
    entries, data = b"", b""
    for tag, values in sorted(tags.items()):
        is_short = all(isinstance(value, int) for value in values)
        packed = struct.pack(f"{order}{len(values)}{'H' if is_short else 'd'}", *values)
        entries += struct.pack(f"{order}HH{offset_format}", tag, 3 if is_short else 12, len(values))
        width = struct.calcsize(order + offset_format)
        if len(packed) <= width:
            entries += packed.ljust(width, b"\0")
        else:
            entries += struct.pack(order + offset_format, data_at + len(data))
            data += packed
    name = b"II" if order == "<" else b"MM"
    start = name + struct.pack(f"{order}H", 43 if is_big else 42)
    start += struct.pack(f"{order}HHQ", 8, 0, head) if is_big else struct.pack(f"{order}I", head)
    return start + struct.pack(order + count_format, len(tags)) + entries + data
