"""Uploaded images: what a job would need gigabytes for is refused when it is uploaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image as Pillow

from tests.in_process import served
from tests.security import corpus
from tests.security import hostile_images as hostile

LARGE: dict[str, Callable[[], bytes]] = {
    "tiny.webp": corpus.tiny_webp,
    "colour.png": lambda: hostile.saved(Pillow.new("RGB", (7000, 7000)), "PNG"),
}


@pytest.mark.parametrize("name", LARGE)
def test_an_image_that_takes_too_much_memory_is_not_stored(tmp_path: Path, name: str) -> None:
    """The processes of jobs decode without the limits of a request."""
    with served(data_dir=tmp_path, default_model="rootsift", job_cores=0) as (client, _):
        assert client.put("/v1/collections/c").status_code == 201
        headers = {"Content-Type": "application/octet-stream"}

        def put(image: bytes) -> tuple[int, str]:
            answer = client.put(f"/v1/collections/c/images/{name}", content=image, headers=headers)
            return answer.status_code, answer.json().get("code", "")

        assert put(LARGE[name]()) == (413, "image_too_large")
        assert put(corpus.good_png()) == (201, "")
        assert client.get("/v1/collections/c").json()["images"] == 1
