from __future__ import annotations

import io

import pytest
from PIL import Image as Pillow

from matchserve.vision.decode_cost import decoding_bytes
from matchserve.vision.pixels import inspect
from tests.security.corpus import scans_jpeg

SIZE = (100, 200)


def cost(mode: str, image_format: str, **options: object) -> float:
    buffer = io.BytesIO()
    Pillow.new(mode, SIZE).save(buffer, image_format, **options)
    data = buffer.getvalue()
    return decoding_bytes(data, *inspect(data)) / (SIZE[0] * SIZE[1])


@pytest.mark.parametrize(
    ("mode", "image_format", "options", "expected"),
    [
        ("L", "JPEG", {}, 2.1),
        ("RGB", "JPEG", {}, 2.1),
        ("CMYK", "JPEG", {}, 5.1),
        ("L", "JPEG", {"progressive": True}, 4.1),
        ("RGB", "JPEG", {"progressive": True, "subsampling": 0}, 8.1),
        ("RGB", "JPEG", {"progressive": True, "subsampling": 2}, 5.1),
        ("L", "PNG", {}, 2.1),
        ("P", "PNG", {}, 2.1),
        ("1", "PNG", {}, 2.1),
        ("I;16", "PNG", {}, 3.5),
        ("RGB", "PNG", {}, 5.5),
        ("LA", "PNG", {}, 5.5),
        ("RGB", "WEBP", {}, 16.0),
        ("RGB", "TIFF", {}, 10.0),
    ],
)
def test_the_memory_follows_from_the_header(
    mode: str, image_format: str, options: dict[str, object], expected: float
) -> None:
    assert cost(mode, image_format, **options) == pytest.approx(expected, abs=0.01)


def test_scans_of_one_component_are_counted() -> None:
    data = scans_jpeg(2, 800)
    assert decoding_bytes(data, *inspect(data)) == int(800 * 800 * 4.1)
