"""Read single numbers of EXIF data without parsing the rest.

Pillow reads every tag with all bytes that it points to. Tags may overlap, so 20 MB of them point to
hundreds of gigabytes.
"""

from __future__ import annotations

import math
import struct
from typing import Any

ORIENTATION_TAG, EXIF_DIRECTORY_TAG = 0x0112, 0x8769
FOCAL_MM_TAG, FOCAL_35MM_TAG = 0x920A, 0xA405
PLANE_X_RESOLUTION_TAG, PLANE_UNIT_TAG = 0xA20E, 0xA210
MAX_EXIF_TAGS = 1000

_INTEGER_TYPES = {1: "B", 3: "H", 4: "I", 8: "h", 9: "i"}
_RATIONAL_TYPES = {5: "II", 10: "ii"}
_UNIT_MM = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
_FILM_DIAGONAL_MM = math.hypot(36.0, 24.0)


def exif_bytes(info: dict[Any, Any]) -> bytes:
    """Return the EXIF data in the metadata of a picture; empty if there are none."""
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


def read_numbers(exif: bytes | memoryview, directory: int | None = None) -> dict[int, float]:
    """Return the tags of one value that are numbers, of the first directory or of one it names.

    Tags of other types are left out; damaged data end the list.
    """
    exif = memoryview(exif)
    if bytes(exif[:6]) == b"Exif\0\0":
        exif = exif[6:]
    order = {b"II": "<", b"MM": ">"}.get(bytes(exif[:2]))
    if order is None:
        return {}
    try:
        start = struct.unpack_from(order + "I", exif, 4)[0]
    except struct.error:
        return {}
    numbers = _directory(exif, order, start)
    if directory is None:
        return numbers
    return _directory(exif, order, int(numbers.get(directory, len(exif))))


def _directory(exif: memoryview, order: str, start: int) -> dict[int, float]:
    numbers: dict[int, float] = {}
    try:
        count = struct.unpack_from(order + "H", exif, start)[0]
        for position in range(start + 2, start + 2 + 12 * min(count, MAX_EXIF_TAGS), 12):
            tag, kind, values = struct.unpack_from(order + "HHI", exif, position)
            if values == 1 and (value := _number(exif, order, kind, position + 8)) is not None:
                numbers.setdefault(tag, value)
    except struct.error:
        pass
    return numbers


def _number(exif: memoryview, order: str, kind: int, position: int) -> float | None:
    """Return an integer or fraction; None for other types, and for a fraction out of the data."""
    if kind in _INTEGER_TYPES:
        return float(struct.unpack_from(order + _INTEGER_TYPES[kind], exif, position)[0])
    if kind not in _RATIONAL_TYPES:
        return None
    place = struct.unpack_from(order + "I", exif, position)[0]
    try:
        above, below = struct.unpack_from(order + _RATIONAL_TYPES[kind], exif, place)
    except struct.error:
        return None
    return above / below if below else None


def read_focal_px(exif: bytes | memoryview, size: tuple[int, int]) -> float | None:
    """Return the focal length in pixels of an image of `size`; None if EXIF does not say."""
    numbers = read_numbers(exif, EXIF_DIRECTORY_TAG)
    return focal_px(
        size,
        focal_mm=numbers.get(FOCAL_MM_TAG),
        equivalent_mm=numbers.get(FOCAL_35MM_TAG),
        plane_resolution=numbers.get(PLANE_X_RESOLUTION_TAG),
        plane_unit=numbers.get(PLANE_UNIT_TAG, 2),
    )


def focal_px(
    size: tuple[int, int],
    *,
    focal_mm: float | None,
    equivalent_mm: float | None,
    plane_resolution: float | None,
    plane_unit: Any,
) -> float | None:
    """Return the focal length in pixels, from the 35 mm equivalent or the sensor's resolution."""
    equivalent, focal_length, resolution = (
        _positive(value) for value in (equivalent_mm, focal_mm, plane_resolution)
    )
    if equivalent:
        return equivalent * math.hypot(*size) / _FILM_DIAGONAL_MM
    unit_mm = _UNIT_MM.get(plane_unit)
    if focal_length and resolution and unit_mm:
        focal = focal_length * resolution / unit_mm
        # A copy of reduced size keeps the resolution of the sensor: such values are not usable.
        return focal if 0.2 < focal / max(size) < 20 else None
    return None


def _positive(value: float | None) -> float:
    """Return a finite positive number, or 0."""
    return value if value is not None and math.isfinite(value) and value > 0 else 0.0
