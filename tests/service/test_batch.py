"""Several pairs in one request."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import numpy as np
import pytest

from matchserve.client import Client, ClientMatch, ServiceError
from matchserve.types import UInt8
from tests.conftest import encoded
from tests.server_process import ServerProcess, running_server

Pair = dict[str, bytes]
FEW: dict[str, Any] = {"max_keypoints": 300}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_pairs_are_matched_as_single_requests_are(
    server: ServerProcess, http: httpx.Client, pair: Pair
) -> None:
    first, second = pair.values()
    direct = http.post("/v1/match", files=pair, data=FEW).json()
    images = [first, second, first]
    body = {"images": [b64(image) for image in images], "pairs": [[0, 1], [2, 1]], **FEW}
    by_json = http.post("/v1/match/batch", json=body).json()
    files = {f"image{n}": image for n, image in enumerate(images)}
    by_form = http.post(
        "/v1/match/batch", files=files, data={**FEW, "pairs": "[[0, 1], [2, 1]]"}
    ).json()
    for answer in (by_json, by_form):
        assert [item["pair"] for item in answer["results"]] == [[0, 1], [2, 1]]
        for item in answer["results"]:
            assert item["error"] is None
            assert item["result"]["matches"] == direct["matches"]
            assert set(item["result"]) == set(direct)
        assert answer["timings_ms"]["total"] > 0
    with Client(server.url) as client:
        results = client.match_many(images, [(0, 1), (2, 1)], **FEW)
        every = client.match_many(images, **FEW)
    assert len(every) == 3
    for result in results:
        assert isinstance(result, ClientMatch)
        np.testing.assert_array_equal(result.matches, direct["matches"])


def test_a_pair_that_fails_leaves_the_others(server: ServerProcess, pair: Pair) -> None:
    first, second = pair.values()
    with Client(server.url) as client:
        results = client.match_many(
            [first, b"not an image", second], [(0, 1), (0, 2), (1, 2)], **FEW
        )
    assert isinstance(results[1], ClientMatch)
    for failed in (results[0], results[2]):
        assert isinstance(failed, ServiceError)
        assert failed.problem_code == "unsupported_format"
        assert failed.message.startswith("image1: ")


def test_damage_that_only_decoding_finds_is_the_error_of_its_pair(
    http: httpx.Client, pair: Pair, photograph: UInt8
) -> None:
    whole = encoded(photograph, "PNG")
    files = {**pair, "image2": whole[: len(whole) // 2]}
    data = {**FEW, "pairs": "[[0, 2], [0, 1]]"}
    results = http.post("/v1/match/batch", files=files, data=data).json()["results"]
    assert results[0]["error"]["code"] == "corrupt_image"
    assert results[0]["error"]["status"] == 422
    assert results[0]["error"]["request_id"]
    assert results[1]["error"] is None


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([[0, 2]], "not the numbers of two of 2 images"),
        ([[1, 1]], "not the numbers"),
        ([[-1, 0]], "not the numbers"),
        ([], "there are none"),
        ([[0, 1]] * 33, "33 pairs, at most 32"),
        ([[0, 1, 2]], "pairs"),
        ("text", "pairs"),
    ],
)
def test_wrong_pairs_are_refused(
    http: httpx.Client, pair: Pair, pairs: object, message: str
) -> None:
    answer = http.post("/v1/match/batch", files=pair, data={"pairs": json.dumps(pairs)})
    assert answer.status_code == 422, answer.text[:300]
    assert message in answer.json()["detail"]


def test_wrong_options_are_an_error_of_the_request(http: httpx.Client, pair: Pair) -> None:
    camera = json.dumps({"model": "PINHOLE", "params": [1, 1, 1, 1], "height": -1})
    answer = http.post("/v1/match/batch", files=pair, data={"camera1": camera})
    assert answer.status_code == 422
    assert "cameras are for verify 'pose' only" in answer.json()["detail"]


def test_images_are_counted_and_complete(http: httpx.Client, jpeg: bytes) -> None:
    gap = http.post("/v1/match/batch", files={"image0": jpeg, "image2": jpeg})
    assert "without a gap" in gap.json()["detail"]
    many = http.post("/v1/match/batch", json={"images": [b64(jpeg[:50])] * 17})
    assert many.status_code == 422
    assert "17 images, at most 16" in many.json()["detail"]
    alone = http.post("/v1/match/batch", files={"image0": jpeg})
    assert "at least two" in alone.json()["detail"]


def test_the_deadline_is_that_of_the_whole_batch(tmp_path: Any, photograph: UInt8) -> None:
    """Pairs that no time is left for have an error; those before have their results."""
    big = encoded(np.tile(photograph, (5, 5, 1)), "JPEG")
    with running_server(
        tmp_path, default_model="rootsift", deadline_s=4.0, cache_bytes=0
    ) as server:
        pairs = json.dumps([[0, 1]] * 32)
        answer = httpx.post(
            f"{server.url}/v1/match/batch",
            files={"image0": big, "image1": big},
            data={"pairs": pairs, "max_keypoints": "8000", "orientation": "oriented"},
            timeout=60,
        )
    if answer.status_code == 504:  # a slow machine had no time for the first pair
        assert answer.json()["code"] == "deadline_exceeded"
        return
    assert answer.status_code == 200, answer.text[:500]
    codes = [item["error"] and item["error"]["code"] for item in answer.json()["results"]]
    assert codes[-1] == "deadline_exceeded"
    assert sorted(codes, key=lambda code: code is not None) == codes
