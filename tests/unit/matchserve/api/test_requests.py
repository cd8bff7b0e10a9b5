"""A request weighs what it takes in memory, not what it says it will work on."""

from __future__ import annotations

import io

import httpx
import pytest
from PIL import Image as Pillow

from matchserve.api.body import MULTIPART
from matchserve.api.requests import Body, ImagesRequest, parse_match
from matchserve.errors import ImageTooLarge
from matchserve.settings import Settings


def weight(
    size: tuple[int, int], image_format: str = "PNG", mode: str = "L", **fields: str
) -> float:
    buffer = io.BytesIO()
    Pillow.new(mode, size).save(buffer, image_format)
    files = {"image0": buffer.getvalue(), "image1": buffer.getvalue()}
    request = httpx.Request("POST", "http://x", files=files, data={"views": "1", **fields})
    boundary = request.headers["Content-Type"].partition("boundary=")[2].encode()

    def no_card(name: str) -> object:
        raise AssertionError(name)

    ask = parse_match(Body(request.read(), MULTIPART, boundary), Settings(), no_card)  # type: ignore[arg-type]
    assert isinstance(ask, ImagesRequest)
    return ask.megapixels


def test_a_small_image_weighs_its_pixels() -> None:
    assert weight((640, 480)) == pytest.approx(2 * 0.3072)


def test_a_reduced_image_weighs_its_working_size() -> None:
    assert weight((4096, 2048)) == pytest.approx(2 * 2048 * 1024 / 1e6)


def test_a_large_image_weighs_its_decoding_however_small_it_becomes() -> None:
    assert weight((6000, 4000), max_side="16") == pytest.approx(2 * 24 * 2.1 / 240)


def test_a_request_weighs_what_its_format_takes_to_decode() -> None:
    png, webp = (weight((800, 600), name, max_side="16") for name in ("PNG", "WEBP"))
    assert png == pytest.approx(2 * 0.48 * 2.1 / 240)
    assert webp == pytest.approx(2 * 0.48 * 16 / 240)


def test_an_image_that_takes_too_much_memory_to_decode_is_refused_by_its_header() -> None:
    """38 bytes of WebP can be 50 megapixels, and take 16 bytes a pixel."""
    weight((4000, 3300), "PNG")
    with pytest.raises(ImageTooLarge, match="decoding this WEBP of 4000x3300 takes 211 MB"):
        weight((4000, 3300), "WEBP")


def test_views_weigh_the_features_that_are_kept() -> None:
    plain = weight((640, 480), max_keypoints="8192")
    views = weight((640, 480), max_keypoints="8192", views="auto")
    # Eight views of 8192 keypoints, up to 1.1 kB each: 72 of 240 megabytes.
    assert views - plain == pytest.approx(8 * 8192 * 1100 / 240e6)
