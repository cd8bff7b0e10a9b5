"""The focal length of EXIF data, without trusting them."""

from __future__ import annotations

import io
import math
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL.TiffImagePlugin import IFDRational, ImageFileDirectory_v2

from matchserve.vision.exif import EXIF_DIRECTORY_TAG, read_focal_px, read_numbers
from matchserve.vision.pixels import exif_focal_px

EXPECTED = 28 * math.hypot(60, 40) / math.hypot(36, 24)


def encoded_with(image_format: str, **tags: object) -> bytes:
    picture = Pillow.fromarray(np.zeros((40, 60), np.uint8))
    exif = Pillow.Exif()
    exif[EXIF_DIRECTORY_TAG] = {int(name[1:], 16): value for name, value in tags.items()}
    buffer = io.BytesIO()
    options: dict[str, Any] = {"exif": exif.tobytes()}
    if image_format == "TIFF":
        directory = ImageFileDirectory_v2()
        directory[EXIF_DIRECTORY_TAG] = exif[EXIF_DIRECTORY_TAG]
        options = {"tiffinfo": directory}
    picture.save(buffer, image_format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_every_format_says_its_focal_length(image_format: str) -> None:
    assert exif_focal_px(encoded_with(image_format, xA405=28)) == pytest.approx(EXPECTED)
    sensor = {"x920A": IFDRational(5, 1), "xA20E": IFDRational(254, 1), "xA210": 2}
    assert exif_focal_px(encoded_with(image_format, **sensor)) == pytest.approx(50)
    assert exif_focal_px(encoded_with(image_format)) is None


@pytest.mark.parametrize("equivalent", [0, 65535])
def test_a_focal_length_is_positive(equivalent: int) -> None:
    found = exif_focal_px(encoded_with("JPEG", xA405=equivalent))
    assert found is None if equivalent == 0 else found is not None


def test_damaged_data_are_no_error() -> None:
    whole = bytes(Pillow.Exif().tobytes())
    for cut in range(len(whole)):
        assert read_focal_px(whole[:cut], (60, 40)) is None
    # A directory of 65535 tags that points to itself, and a fraction outside the data.
    loop = struct.pack("<2sHIH", b"II", 42, 8, 65535) + struct.pack("<HHII", 0x8769, 4, 1, 8) * 5
    assert read_numbers(loop, EXIF_DIRECTORY_TAG) == {0x8769: 8}
    outside = struct.pack("<2sHIH", b"II", 42, 8, 1) + struct.pack("<HHII", 0x920A, 5, 1, 1 << 30)
    assert read_numbers(outside) == {}
