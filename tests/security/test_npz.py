"""Archives of features that are damaged, or unpack to far more than they weigh."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from tests.server_process import ServerProcess

FIELDS: dict[str, Any] = {
    "model": np.array("rootsift"),
    "image_size": np.array([64, 64]),
    "keypoints": np.ones((2, 2), np.float32),
    "descriptors": np.eye(2, 128, dtype=np.float32),
}


def archive(**changes: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{**FIELDS, **changes})
    return buffer.getvalue()


def header(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text = text.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def member(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("keypoints.npy", content)
    return buffer.getvalue()


def bomb() -> bytes:
    return member(header("(50000000, 2)") + bytes(400_000_000))


def one_array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


def flipped(position: int) -> Callable[[], bytes]:
    def make() -> bytes:
        data = bytearray(archive())
        data[position] ^= 0xFF
        return bytes(data)

    return make


def send(http: httpx.Client, data: bytes) -> httpx.Response:
    return http.post("/v1/features/match", files={"features0": data, "features1": archive()})


def test_a_good_archive_is_taken(http: httpx.Client) -> None:
    assert send(http, archive()).status_code == 200


@pytest.mark.parametrize(
    "make",
    [
        one_array,
        flipped(65),
        lambda: archive()[:-30],
        lambda: b"PK\x05\x06" + bytes(18),
        lambda: member(header("(1000000000000, 2)")),
        lambda: archive(image_size=np.array([np.inf, 1.0])),
        lambda: archive(keypoints=np.ones((2, 3))),
        lambda: archive(**{f"more{n}": np.zeros(1) for n in range(40)}),
        lambda: archive(descriptors=np.full((2, 128), np.nan, np.float32)),
    ],
    ids=["npy", "flipped", "cut", "empty", "shape", "infinite", "columns", "many", "nan"],
)
def test_a_bad_archive_is_refused(http: httpx.Client, make: Callable[[], bytes]) -> None:
    answer = send(http, make())
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")


def test_a_bomb_is_not_unpacked(server: ServerProcess, http: httpx.Client) -> None:
    before = server.rss()
    answer = send(http, bomb())
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    assert answer.json()["limit"] == 20_000_000
    assert server.rss() - before < 100_000_000


@pytest.mark.parametrize("length", ["\u00b2", "9" * 5000, "-1", "1e3", ""])
def test_a_bad_inference_header_length_is_refused(http: httpx.Client, length: str) -> None:
    headers = {b"Inference-Header-Content-Length": length.encode("latin-1")}
    answer = http.post("/v2/models/rootsift/infer", content=b"{}", headers=headers)
    assert answer.status_code == 400
