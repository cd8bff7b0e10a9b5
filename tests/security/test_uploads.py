"""Uploaded images: what a job would need gigabytes for is refused when it is uploaded."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image as Pillow

from matchserve.jobs import uploads
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


def test_an_upload_to_a_full_disk_is_507_and_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    headers = {"Content-Type": "image/png"}
    with served(data_dir=tmp_path, default_model="rootsift", job_cores=0) as (client, _):
        client.put("/v1/collections/c")
        url, image = "/v1/collections/c/images/a.png", corpus.good_png()
        with monkeypatch.context() as patched:
            patched.setattr(uploads, "open_whole", full)
            answer = client.put(url, content=image, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (507, "storage_full")
            assert client.get("/v1/collections/c").json()["images"] == 0
        assert client.put(url, content=image, headers=headers).status_code == 201
