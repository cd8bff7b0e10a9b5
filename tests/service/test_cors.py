"""Pages of other origins, by setting."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.server_process import ServerProcess, running_server

FRIEND, STRANGER = "https://friend.example", "https://stranger.example"
ASKED = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(
        tmp_path_factory.mktemp("cors"), default_model="rootsift", cors_origins=f" {FRIEND} ,"
    ) as running:
        yield running


def test_by_default_no_page_of_another_origin_may_read(http: httpx.Client) -> None:
    answer = http.get("/v1/models", headers={"Origin": FRIEND})
    assert "access-control-allow-origin" not in answer.headers
    assert http.options("/v1/match", headers={"Origin": FRIEND, **ASKED}).status_code == 405


def test_a_named_origin_may_call_and_others_may_not(open_server: ServerProcess) -> None:
    with httpx.Client(base_url=open_server.url) as client:
        asked = client.options("/v1/match", headers={"Origin": FRIEND, **ASKED})
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == FRIEND
        assert "access-control-allow-credentials" not in asked.headers
        assert asked.headers["x-request-id"]
        # Errors can be read too.
        refused = client.post("/v1/match", headers={"Origin": FRIEND})
        assert refused.status_code == 422
        assert refused.headers["access-control-allow-origin"] == FRIEND
        assert "X-Request-ID" in refused.headers["access-control-expose-headers"]
        stranger = client.options("/v1/match", headers={"Origin": STRANGER, **ASKED})
        assert stranger.status_code == 400
        assert "access-control-allow-origin" not in stranger.headers
