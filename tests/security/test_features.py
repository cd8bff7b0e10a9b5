"""Features from outside whose values no detector returns: they are refused, not a failure."""

from __future__ import annotations

import io
from typing import Any

import httpx
import numpy as np
import pytest

from tests.security.test_npz import FIELDS
from tests.server_process import ServerProcess

COUNT = 40
MATCH, STORED = "/v1/features/match", "/v1/features/stored"


def npz(**fields: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **fields)
    return buffer.getvalue()


def described(**changes: Any) -> dict[str, Any]:
    """Return features of which all match; fewer would not be judged."""
    rng = np.random.default_rng(0)
    fields = {
        "model": np.array("rootsift"),
        "image_size": np.array([640, 480]),
        "keypoints": rng.uniform(0, 480, (COUNT, 2)).astype(np.float32),
        "descriptors": np.eye(COUNT, 128, dtype=np.float32),
    }
    return {**fields, **changes}


def column(value: float) -> Any:
    return np.full(COUNT, value, np.float32)


BAD: dict[str, dict[str, Any]] = {
    "far": {"keypoints": np.outer(np.arange(COUNT), [1e28, -1e28]).astype(np.float32)},
    "infinite": {"keypoints": np.full((COUNT, 2), np.inf, np.float32)},
    "negative scales": {"scales": column(-1)},
    "scales of zero": {"scales": column(0)},
    "scales that are not numbers": {"scales": column(np.nan)},
    "infinite scales": {"scales": column(np.inf)},
    "orientations that are not numbers": {"orientations": column(np.nan)},
    "infinite scores": {"scores": column(np.inf)},
    "negative working size": {"working_size": np.array([-1, -1])},
    "no working size": {"working_size": np.array([0, 0])},
    "long fingerprint": {"fingerprint": np.array("x" * 1000)},
    "long model": {"model": np.array("x" * 1000)},
}


def test_ordinary_features_are_taken(http: httpx.Client) -> None:
    files = {"features0": npz(**described()), "features1": npz(**described())}
    answer = http.post(MATCH, files=files)
    assert answer.status_code == 200
    assert len(answer.json()["matches"]) == COUNT


@pytest.mark.parametrize("name", BAD)
def test_values_that_no_detector_returns_are_refused(http: httpx.Client, name: str) -> None:
    good, bad = npz(**described()), npz(**described(**BAD[name]))
    for first, second in ((bad, good), (good, bad)):
        answer = http.post(MATCH, files={"features0": first, "features1": second})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")
    stored = http.post(STORED, files={"features": bad})
    assert stored.status_code == 422


@pytest.mark.parametrize("name", ["far", "negative scales"])
def test_the_same_values_in_json_are_refused(http: httpx.Client, name: str) -> None:
    fields = {k: v.tolist() for k, v in described(**BAD[name]).items()}
    answer = http.post(MATCH, json={"features0": fields, "features1": fields})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")


def test_texts_of_stored_features_take_no_memory(server: ServerProcess, http: httpx.Client) -> None:
    """The store counts arrays: 16 MB of text in each file would fill the memory unseen."""

    def send(numbers: range) -> None:
        for number in numbers:
            text = np.array(f"{number:03}" + "x" * 4_000_000)
            http.post(STORED, files={"features": npz(**{**FIELDS, "fingerprint": text})})

    send(range(5))  # the heaps of the threads
    before = server.rss()
    send(range(5, 45))
    assert server.rss() - before < 80_000_000
