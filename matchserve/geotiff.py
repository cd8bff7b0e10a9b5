"""Read where the pixels of a GeoTIFF lie on a map: its affine transform and its EPSG code.

Only the header and the tags of the first image are read. Map projections are not computed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import MissingInput
from matchserve.types import Float64

_PIXEL_SCALE, _TIEPOINT, _TRANSFORMATION, _GEO_KEYS = 33550, 33922, 34264, 34735
_WANTED = (_PIXEL_SCALE, _TIEPOINT, _TRANSFORMATION, _GEO_KEYS)
_RASTER_TYPE, _GEOGRAPHIC_CRS, _PROJECTED_CRS = 1025, 2048, 3072
_PIXEL_IS_POINT = 2
_USER_DEFINED = 32767
_MAX_TAGS, _MAX_VALUES = 512, 4096
_TYPES = {3: "H", 12: "d"}  # SHORT, DOUBLE: the types of these tags


@dataclass(frozen=True, slots=True)
class GeoReference:
    """An affine map from pixels to map coordinates, and the EPSG code of the map if it has one.

    `matrix` is (a, b, c, d, e, f): X = a x + b y + c, Y = d x + e y + f. The centre of the first
    pixel is (0, 0), as everywhere here, whatever the file's convention.
    """

    matrix: tuple[float, ...]
    epsg: int | None = None

    def to_map(self, xy: NDArray[Any]) -> Float64:
        """Return the map coordinates (N, 2) of pixels (N, 2)."""
        affine = np.array(self.matrix, np.float64).reshape(2, 3)
        return np.asarray(np.asarray(xy, np.float64) @ affine[:, :2].T + affine[:, 2])


def read_georeference(file: BinaryIO) -> GeoReference | None:
    """Read the georeference of a TIFF or BigTIFF; None for other files and damaged tags."""
    try:
        tags = _read_tags(file)
    except (struct.error, OSError, OverflowError):
        return None
    keys = _geo_keys(tags.get(_GEO_KEYS, ()))
    matrix = _affine(tags)
    if matrix is None or not all(math.isfinite(value) for value in matrix):
        return None
    a, b, c, d, e, f = matrix
    if a * e == b * d:
        return None
    if keys.get(_RASTER_TYPE) != _PIXEL_IS_POINT:  # coordinates count from the pixel's corner
        c, f = c + (a + b) / 2, f + (d + e) / 2
    return GeoReference((a, b, c, d, e, f), _epsg(keys))


def georeference_of(path: Path) -> GeoReference | None:
    """Read the georeference of a file; None if it has none.

    Raises:
        MissingInput: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return read_georeference(file)
    except OSError as error:
        raise MissingInput(f"cannot read {path}: {error.strerror}") from error


def _read_tags(file: BinaryIO) -> dict[int, tuple[float, ...]]:
    """Return the values of the wanted tags of the first image."""
    file.seek(0)
    start = file.read(16)
    order = {b"II": "<", b"MM": ">"}.get(start[:2])
    if order is None:
        return {}
    (magic,) = struct.unpack_from(f"{order}H", start, 2)
    if magic == 42:
        count_format, offset_format, place = "H", "I", 4
    elif magic == 43:
        count_format, offset_format, place = "Q", "Q", 8
    else:
        return {}
    (offset,) = struct.unpack_from(order + offset_format, start, place)
    file.seek(offset)
    (count,) = _unpack(file, order + count_format)
    entry = f"{order}HH{offset_format}"
    size = struct.calcsize(entry) + struct.calcsize(offset_format)
    table = file.read(size * min(count, _MAX_TAGS))
    found: dict[int, tuple[float, ...]] = {}
    for at in range(0, len(table) - size + 1, size):
        tag, kind, values = struct.unpack_from(entry, table, at)
        if tag in _WANTED and kind in _TYPES and values <= _MAX_VALUES:
            field = table[at + struct.calcsize(entry) : at + size]
            found[tag] = _values(file, field, order, f"{values}{_TYPES[kind]}", offset_format)
    return found


def _values(
    file: BinaryIO, field: bytes, order: str, layout: str, offset_format: str
) -> tuple[float, ...]:
    """Return the values of a tag, which lie in its field if they fit there."""
    if struct.calcsize(order + layout) <= len(field):
        return struct.unpack_from(order + layout, field)
    (offset,) = struct.unpack(order + offset_format, field)
    file.seek(offset)
    return _unpack(file, order + layout)


def _unpack(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def _affine(tags: Mapping[int, tuple[float, ...]]) -> tuple[float, ...] | None:
    """Return the transform from raster to map coordinates, as the file means it."""
    full = tags.get(_TRANSFORMATION, ())
    if len(full) == 16:
        return (full[0], full[1], full[3], full[4], full[5], full[7])
    scale, tie = tags.get(_PIXEL_SCALE, ()), tags.get(_TIEPOINT, ())
    if len(scale) < 2 or len(tie) < 6:  # several tie points without a scale are not affine
        return None
    column, row, x, y = tie[0], tie[1], tie[3], tie[4]
    return (scale[0], 0.0, x - column * scale[0], 0.0, -scale[1], y + row * scale[1])


def _geo_keys(values: tuple[float, ...]) -> dict[int, int]:
    """Return the keys whose value is in the directory itself."""
    rows = [values[at : at + 4] for at in range(4, len(values) - 3, 4)]
    return {int(key): int(value) for key, place, _, value in rows if place == 0}


def _epsg(keys: Mapping[int, int]) -> int | None:
    """Return the code of the map projection, or of the ellipsoid if there is no projection."""
    code = keys.get(_PROJECTED_CRS, keys.get(_GEOGRAPHIC_CRS, 0))
    return None if code in (0, _USER_DEFINED) else code
