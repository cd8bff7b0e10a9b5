"""Uploaded images: what a job would need gigabytes for is refused when it is uploaded."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image as Pillow

from matchserve.jobs import uploads
from tests.in_process import served
from tests.patience import wait_until
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


def test_half_sent_uploads_of_one_client_leave_room_for_the_others(tmp_path: Path) -> None:
    """They hold memory until the time to receive them is over, and can be renewed for ever."""
    with served(
        data_dir=tmp_path,
        default_model="rootsift",
        job_cores=0,
        api_keys="hostile,honest",
        max_inflight_bytes=8_000_000,
        max_body_bytes=1_000_000,
    ) as (client, service):
        port = int(str(client.base_url).rsplit(":", 1)[1].strip("/"))
        client.put("/v1/collections/c", headers={"X-API-Key": "hostile"})
        head = (
            b"PUT /v1/collections/c/images/a.png HTTP/1.1\r\nHost: x\r\nX-API-Key: hostile\r\n"
            b"Content-Type: image/png\r\nContent-Length: 1000000\r\n\r\n"
        )
        with contextlib.ExitStack() as stack:
            for _ in range(9):
                connection = socket.create_connection(("127.0.0.1", port), timeout=60)
                stack.enter_context(connection)
                with contextlib.suppress(ConnectionError):  # refused before its end
                    connection.sendall(head + bytes(950_000))
            wait_until(lambda: service.budget.held > 3_000_000)
            time.sleep(0.5)
            image = (corpus.good_png() + bytes(900_000))[:450_000]
            answer = client.post(
                "/v1/match",
                files={"image0": image, "image1": image},
                headers={"X-API-Key": "honest"},
            )
            assert answer.status_code == 200
            assert service.budget.held <= 4_000_000
        wait_until(lambda: service.budget.held == 0)
