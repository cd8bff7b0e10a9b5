"""Features that are sent once and then named by their id."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from matchserve.client import Client, ServiceError
from tests.server_process import ServerProcess, running_server

Pair = dict[str, bytes]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("keyed")
    with running_server(
        folder,
        default_model="rootsift",
        api_keys="one,two",
        store_bytes=600_000,
        requests_per_s=0.001,
        request_burst=1000,
    ) as running:
        yield running


def test_an_image_is_described_once_and_matched_by_id(
    server: ServerProcess, http: httpx.Client, pair: Pair
) -> None:
    direct = http.post("/v1/match", files=pair, data={"refine": "none"}).json()
    with Client(server.url) as client:
        first = client.store_image(pair["image0"])
        second = client.store(client.features(pair["image1"]))
        by_id = client.match_features(first, second)
        np.testing.assert_array_equal(by_id.matches, direct["matches"])
        limit = float(np.max(by_id.distances)) / 2
        near = client.match_features(first, second, max_distance=limit)
        assert 0 < len(near.matches) < len(by_id.matches)
        assert np.max(near.distances) <= limit
        mixed = client.match_features(first, client.features(pair["image1"]))
        np.testing.assert_array_equal(mixed.matches, direct["matches"])
    as_json = {"features0_id": first, "features1_id": second}
    assert http.post("/v1/features/match", json=as_json).json()["matches"] == direct["matches"]
    limited = http.post("/v1/features/match", json={**as_json, "max_distance": limit}).json()
    assert limited["matches"] == near.matches.tolist()
    body = http.get(f"/v1/features/stored/{first}").json()
    assert body["keypoints"] == direct["keypoints0"]
    assert http.delete(f"/v1/features/stored/{first}").status_code == 204
    gone = http.post("/v1/features/match", json=as_json)
    assert gone.status_code == 404
    assert gone.json()["code"] == "unknown_features"
    assert "store=true" in gone.json()["detail"]


def test_descriptors_need_not_come_back(http: httpx.Client, jpeg: bytes) -> None:
    fields = {"store": "true", "descriptors": "none"}
    body = http.post("/v1/features", files={"image": jpeg}, data=fields).json()
    assert "descriptors" not in body
    assert len(body["id"]) == 64
    stored = http.get(f"/v1/features/stored/{body['id']}").json()
    assert len(stored["descriptors"]) == len(body["keypoints"])


def test_features_belong_to_the_key_that_stored_them(keyed: ServerProcess, jpeg: bytes) -> None:
    with Client(keyed.url, api_key="one") as one, Client(keyed.url, api_key="two") as two:
        name = one.store_image(jpeg, max_keypoints=200)
        assert len(one.match_features(name, name).matches) > 100
        with pytest.raises(ServiceError) as refused:
            two.match_features(name, name)
        assert refused.value.problem_code == "unknown_features"
        with pytest.raises(ServiceError, match="can be stored"):
            one.store_image(jpeg, max_keypoints=2048)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"features0_id": "0" * 64},
        {"features0_id": "x", "features1_id": "0" * 64},
        {"features0_id": "../../etc", "features1_id": "0" * 64},
    ],
)
def test_wrong_ids_are_refused(http: httpx.Client, fields: dict[str, str]) -> None:
    answer = http.post("/v1/features/match", json=fields)
    assert answer.status_code in (404, 422)
    assert "features" in answer.json()["detail"]
    assert http.get("/v1/features/stored/abc").status_code == 422


def test_a_batch_counts_as_many_requests(tmp_path: Path, pair: Pair) -> None:
    """The debt of a batch is paid before the next request."""
    with running_server(
        tmp_path, default_model="rootsift", requests_per_s=0.01, request_burst=3
    ) as server:
        data = {"pairs": "[[0,1],[1,0],[0,1],[1,0]]", "max_keypoints": "50"}
        done = httpx.post(f"{server.url}/v1/match/batch", files=pair, data=data, timeout=60)
        assert done.status_code == 200
        assert all(item["error"] is None for item in done.json()["results"])
        refused = httpx.get(f"{server.url}/v1/models")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 100
