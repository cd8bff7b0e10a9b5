from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL.TiffImagePlugin import IFDRational

from matchserve.collections.facts import Facts, read_facts


def photo(size: tuple[int, int] = (60, 40), **tags: object) -> bytes:
    """A JPEG with tags of the EXIF (`e...`), GPS (`g...`) or main (`t...`) directory."""
    exif = Pillow.Exif()
    for name, value in tags.items():
        folder = {"e": 0x8769, "g": 0x8825}.get(name[0])
        target = exif if folder is None else exif.get_ifd(folder)
        target[int(name[1:], 16)] = value
    buffer = io.BytesIO()
    Pillow.fromarray(np.zeros(size[::-1], np.uint8)).save(buffer, "JPEG", exif=exif)
    return buffer.getvalue()


def facts(**tags: Any) -> Facts:
    found = read_facts(photo(**tags))
    assert found is not None
    return found


def test_a_photograph_without_exif() -> None:
    assert facts() == Facts((60, 40))


def test_focal_length_from_the_35_mm_equivalent() -> None:
    # 36 mm wide film, 60 pixels wide image of the same shape.
    assert facts(eA405=28).focal_px == pytest.approx(28 / 36 * 60)


def test_focal_length_from_the_sensor() -> None:
    # 10 pixels a millimetre: 254 an inch.
    found = facts(
        e920A=IFDRational(5, 1), eA20E=IFDRational(254, 1), eA210=2, t010F="Acme", t0110="One"
    )
    assert found.focal_px == pytest.approx(50)
    assert found.camera == "Acme One 5 mm"


def test_a_focal_length_that_cannot_be_is_not_used() -> None:
    assert facts(e920A=IFDRational(5, 1), eA20E=IFDRational(25400, 1), eA210=2).focal_px is None


def test_position_and_time() -> None:
    found = facts(
        g1="S", g2=(33.0, 30.0, 36.0), g3="E", g4=(151.0, 15.0, 0.0), g5=b"\x01", g6=2.5,
        e9003="2026:05:01 10:00:00", e9291="42",
    )  # fmt: skip
    assert found.position is not None
    latitude, longitude, altitude = found.position
    assert latitude == pytest.approx(-33.51)
    assert longitude == pytest.approx(151.25)
    assert altitude == pytest.approx(-2.5)
    assert found.time == "2026:05:01 10:00:00.42"


@pytest.mark.parametrize(
    "tags",
    [
        {"g1": "N", "g2": (0.0, 0.0, 0.0), "g3": "E", "g4": (0.0, 0.0, 0.0)},
        {"g1": "N", "g2": (95.0, 0.0, 0.0), "g3": "E", "g4": (5.0, 0.0, 0.0)},
        {"g1": "N", "g2": (5.0, 0.0, IFDRational(1, 0)), "g3": "E", "g4": (5.0, 0.0, 0.0)},
        {"g1": "N", "g2": (5.0, 0.0, 0.0)},
    ],
)
def test_positions_that_cannot_be_count_as_absent(tags: dict[str, object]) -> None:
    assert facts(**tags).position is None


def test_damaged_headers() -> None:
    assert read_facts(b"") is None
    assert read_facts(b"not an image") is None
    whole = photo(eA405=28, g1="N", g2=(5.0, 0.0, 0.0), g3="E", g4=(5.0, 0.0, 0.0))
    for place in range(20, 200):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        read_facts(bytes(damaged))  # does not raise
