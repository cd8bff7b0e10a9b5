"""Synthetic views, asked for in every way that the service offers."""

from __future__ import annotations

import base64
import io

import httpx
import numpy as np
import pytest

from matchserve.client import Client
from matchserve.types import UInt8
from tests.conftest import encoded
from tests.server_process import ServerProcess
from training.evaluation.benchmarks.tilts import TiltedView, tilted
from training.metrics.image_pairs import corner_error

FIELDS = {"verify": "homography", "views": "search"}


@pytest.fixture(scope="module")
def view(grey_photograph: UInt8) -> TiltedView:
    return tilted(np.ascontiguousarray(grey_photograph[:360, :400]), 76, axis_deg=20, turn_deg=0)


@pytest.fixture(scope="module")
def files(grey_photograph: UInt8, view: TiltedView) -> dict[str, bytes]:
    return {"image0": encoded(grey_photograph[:360, :400]), "image1": encoded(view.grey)}


def test_views_find_the_homography_over_http(
    http: httpx.Client, files: dict[str, bytes], view: TiltedView
) -> None:
    alone = http.post("/v1/match", files=files, data={"verify": "homography", "views": 1}).json()
    assert alone["views"] == {"described": 2, "best": [[1.0, 0.0], [1.0, 0.0]], "reason": ""}
    body = http.post("/v1/match", files=files, data=FIELDS).json()
    matrix = np.array(body["geometry"]["matrix"])
    assert corner_error(matrix, view.homography, (400, 360)) < 3
    assert body["views"]["described"] > 2
    assert body["views"]["best"][0][0] > 1
    assert len(body["confidence"]) == len(body["points1"]) == len(body["matches"])


def test_json_npz_and_client_say_the_same(
    http: httpx.Client, server: ServerProcess, files: dict[str, bytes]
) -> None:
    body = {name: base64.b64encode(data).decode() for name, data in files.items()}
    expected = http.post("/v1/match", json={**body, "verify": "homography", "views": 3}).json()
    assert expected["views"]["described"] == 4
    npz = http.post(
        "/v1/match",
        files=files,
        data={**FIELDS, "views": "3"},
        headers={"Accept": "application/x-npz"},
    )
    with np.load(io.BytesIO(npz.content), allow_pickle=False) as arrays:
        assert int(arrays["views_described"]) == 4
        assert arrays["views_best"].tolist() == expected["views"]["best"]
        np.testing.assert_array_equal(arrays["matches"], expected["matches"])
    with Client(server.url) as client:
        found = client.match(*files.values(), verify="homography", views=3)
    assert [list(view) for view in found.views.best] == expected["views"]["best"]
    assert found.views.reason == expected["views"]["reason"]


@pytest.mark.parametrize("views", ["0", "1000", "few"])
def test_other_numbers_are_refused(http: httpx.Client, files: dict[str, bytes], views: str) -> None:
    answer = http.post("/v1/match", files=files, data={"views": views})
    assert answer.status_code == 422
    assert "views" in answer.json()["detail"]


def test_guided_matches_are_marked(
    http: httpx.Client, server: ServerProcess, pair: dict[str, bytes]
) -> None:
    fields = {"verify": "homography", "guided": "true"}
    plain = http.post("/v1/match", files=pair, data={"verify": "homography", "views": 1}).json()
    assert not any(plain["guided"])
    body = http.post("/v1/match", files=pair, data=fields).json()
    assert len(body["guided"]) == len(body["matches"])
    with Client(server.url) as client:
        found = client.match(*pair.values(), verify="homography", guided=True)
    np.testing.assert_array_equal(found.guided, body["guided"])
    assert found.guided.any()
