"""What the header and the EXIF data say about a photograph: size, focal length, time, position."""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image as Pillow

from matchserve.geotiff import GeoReference, georeference_of, read_georeference
from matchserve.vision.decode import FORMATS
from matchserve.vision.exif import (
    EXIF_DIRECTORY_TAG,
    FOCAL_35MM_TAG,
    FOCAL_MM_TAG,
    ORIENTATION_TAG,
    PLANE_UNIT_TAG,
    PLANE_X_RESOLUTION_TAG,
    focal_px,
)

_MAKE, _MODEL, _DATE_TIME = 0x010F, 0x0110, 0x0132
_GPS_IFD = 0x8825
_DATE_ORIGINAL, _SUBSECONDS = 0x9003, 0x9291


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about one photograph; None where its header does not say.

    `size` is that of the stored raster. `focal_px` is in pixels of the stored raster. `camera`
    names the camera and its lens setting. Latitude and longitude are in degrees (WGS84), altitude
    in metres. `georeference` is that of a GeoTIFF.
    """

    size: tuple[int, int]
    focal_px: float | None = None
    camera: str = ""
    time: str = ""
    position: tuple[float, float, float | None] | None = None
    orientation: int = 1
    georeference: GeoReference | None = None


def read_facts(data: bytes) -> Facts | None:
    """Read the facts of an encoded image; damaged EXIF data count as absent.

    Returns None if not even the header can be read.
    """
    try:
        with (
            warnings.catch_warnings(action="ignore", category=Pillow.DecompressionBombWarning),
            Pillow.open(io.BytesIO(data), formats=FORMATS) as picture,
        ):
            facts = _with_exif(picture.size, picture.getexif())
    except Exception:  # noqa: BLE001  Pillow's plugins raise anything; the decoder will say what
        return None
    return replace(facts, georeference=read_georeference(io.BytesIO(data)))


def read_exif_facts(path: Path, size: tuple[int, int], exif: bytes) -> Facts:
    """Return the facts of an image file that Pillow does not open, from its size and EXIF data.

    Raises:
        MissingInput: the file cannot be read.
    """
    tags = Pillow.Exif()
    try:
        tags.load(exif)
        facts = _with_exif(size, tags)
    except Exception:  # noqa: BLE001  damaged EXIF data count as absent
        facts = Facts(size)
    return replace(facts, georeference=georeference_of(path))


def _with_exif(size: tuple[int, int], tags: Pillow.Exif) -> Facts:
    try:
        detail, gps = tags.get_ifd(EXIF_DIRECTORY_TAG), tags.get_ifd(_GPS_IFD)
    except Exception:  # noqa: BLE001  a damaged tag must not cost the image
        return Facts(size)
    focal_mm = _number(detail.get(FOCAL_MM_TAG))
    named = (_text(tags.get(_MAKE)), _text(tags.get(_MODEL)))
    camera = " ".join(part for part in named if part)
    if camera and focal_mm:
        camera += f" {focal_mm:g} mm"
    time = _text(detail.get(_DATE_ORIGINAL)) or _text(tags.get(_DATE_TIME))
    if time and (fraction := _text(detail.get(_SUBSECONDS))):
        time += f".{fraction}"
    turn = tags.get(ORIENTATION_TAG, 1)
    return Facts(
        size,
        _focal_px(size, focal_mm, detail),
        camera,
        time,
        _position(gps),
        turn if turn in range(1, 9) else 1,
    )


def _focal_px(
    size: tuple[int, int], focal_mm: float | None, detail: dict[int, Any]
) -> float | None:
    return focal_px(
        size,
        focal_mm=focal_mm,
        equivalent_mm=_number(detail.get(FOCAL_35MM_TAG)),
        plane_resolution=_number(detail.get(PLANE_X_RESOLUTION_TAG)),
        plane_unit=detail.get(PLANE_UNIT_TAG, 2),
    )


def _position(gps: dict[int, Any]) -> tuple[float, float, float | None] | None:
    latitude, longitude = _degrees(gps.get(2), gps.get(1)), _degrees(gps.get(4), gps.get(3))
    if latitude is None or longitude is None or not (abs(latitude) <= 90 and abs(longitude) <= 180):
        return None
    if latitude == 0 and longitude == 0:  # written by receivers without a fix
        return None
    altitude = _number(gps.get(6))
    below = gps.get(5) in (1, b"\x01")
    return latitude, longitude, -altitude if altitude is not None and below else altitude


def _degrees(parts: Any, reference: Any) -> float | None:
    try:
        degrees, minutes, seconds = (_number(part) for part in parts)
    except (TypeError, ValueError):
        return None
    if degrees is None or minutes is None or seconds is None:
        return None
    value = degrees + minutes / 60 + seconds / 3600
    return -value if _text(reference).upper() in ("S", "W") else value


def _number(value: Any) -> float | None:
    """Return a finite, non-negative number, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("ascii", errors="ignore")
    return value.replace("\0", "").strip() if isinstance(value, str) else ""
