"""What the header and the EXIF data say about a photograph: size, focal length, time, position."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any

from PIL import Image as Pillow

from matchserve.vision.decode import FORMATS

_MAKE, _MODEL, _ORIENTATION, _DATE_TIME = 0x010F, 0x0110, 0x0112, 0x0132
_EXIF_IFD, _GPS_IFD = 0x8769, 0x8825
_DATE_ORIGINAL, _SUBSECONDS = 0x9003, 0x9291
_FOCAL_MM, _FOCAL_35MM = 0x920A, 0xA405
_PLANE_X_RESOLUTION, _PLANE_UNIT = 0xA20E, 0xA210
_UNIT_MM = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
_FILM_DIAGONAL_MM = math.hypot(36.0, 24.0)


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about one photograph; None where its header does not say.

    `size` is that of the stored raster. `focal_px` is in pixels of the stored raster. `camera`
    names the camera and its lens setting. Latitude and longitude are in degrees (WGS84), altitude
    in metres.
    """

    size: tuple[int, int]
    focal_px: float | None = None
    camera: str = ""
    time: str = ""
    position: tuple[float, float, float | None] | None = None
    orientation: int = 1


def read_facts(data: bytes) -> Facts | None:
    """Read the facts of an encoded image; damaged EXIF data count as absent.

    Returns None if not even the header can be read.
    """
    try:
        with Pillow.open(io.BytesIO(data), formats=FORMATS) as picture:
            size = picture.size
            return _with_exif(size, picture.getexif())
    except Exception:  # noqa: BLE001  Pillow's plugins raise anything; the decoder will say what
        return None


def _with_exif(size: tuple[int, int], tags: Pillow.Exif) -> Facts:
    try:
        detail, gps = tags.get_ifd(_EXIF_IFD), tags.get_ifd(_GPS_IFD)
    except Exception:  # noqa: BLE001  a damaged tag must not cost the image
        return Facts(size)
    focal_mm = _number(detail.get(_FOCAL_MM))
    named = (_text(tags.get(_MAKE)), _text(tags.get(_MODEL)))
    camera = " ".join(part for part in named if part)
    if camera and focal_mm:
        camera += f" {focal_mm:g} mm"
    time = _text(detail.get(_DATE_ORIGINAL)) or _text(tags.get(_DATE_TIME))
    if time and (fraction := _text(detail.get(_SUBSECONDS))):
        time += f".{fraction}"
    turn = tags.get(_ORIENTATION, 1)
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
    """Return the focal length in pixels, from the 35 mm equivalent or the sensor's resolution."""
    equivalent = _number(detail.get(_FOCAL_35MM))
    if equivalent:
        return equivalent * math.hypot(*size) / _FILM_DIAGONAL_MM
    resolution = _number(detail.get(_PLANE_X_RESOLUTION))
    unit_mm = _UNIT_MM.get(detail.get(_PLANE_UNIT, 2))
    if focal_mm and resolution and unit_mm:
        focal = focal_mm * resolution / unit_mm
        # A copy of reduced size keeps the resolution of the sensor: such values are not usable.
        return focal if 0.2 < focal / max(size) < 20 else None
    return None


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
