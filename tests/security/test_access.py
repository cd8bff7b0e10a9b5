"""Keys, rates, logs and headers."""

from __future__ import annotations

import ast
import inspect
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from matchserve.api import access
from matchserve.api.access import KeyRing, RateLimit
from matchserve.api.errors import RateLimited
from tests.server_process import ServerProcess, running_server

KEY = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("locked")
    keys = folder / "keys"
    keys.write_text(f"{KEY}\nsecond\n", encoding="utf-8")
    with running_server(
        folder, api_keys_file=keys, api_keys="third", requests_per_s=0.001, request_burst=3
    ) as running:
        yield running


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-API-Key": ""},
        {"X-API-Key": "wrong"},
        {"X-API-Key": b"\xff\xfe"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {KEY}"},
        {"X-API-Key": KEY[:-1]},
    ],
)
def test_a_wrong_key_is_refused(locked: ServerProcess, headers: dict[str, str]) -> None:
    answer = httpx.get(f"{locked.url}/v1/models", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_right_key_is_let_in_and_then_limited(locked: ServerProcess) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    statuses = [httpx.get(f"{locked.url}/v1/models", headers=headers).status_code for _ in range(3)]
    assert statuses == [200, 200, 200]
    refused = httpx.get(f"{locked.url}/v1/models", headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert int(refused.headers["retry-after"]) >= 1
    other = httpx.get(f"{locked.url}/v1/models", headers={"X-API-Key": "second"})
    assert other.status_code == 200
    assert httpx.get(f"{locked.url}/v1/models", headers={"X-API-Key": "third"}).status_code == 200


def test_health_and_the_page_need_no_key(locked: ServerProcess) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/", "/openapi.json"):
        assert httpx.get(f"{locked.url}{path}").status_code == 200


def test_keys_and_line_breaks_never_reach_the_log(locked: ServerProcess) -> None:
    with httpx.Client(base_url=locked.url) as client:
        for number in range(1000):
            client.get("/v1/models", headers={"X-API-Key": f"bad-secret-{number}"})
        client.get("/v1/%0d%0a{injected: true}%00", headers={"X-API-Key": "second"})
    end = time.monotonic() + 5  # a request is logged after it was answered
    while "injected" not in (log := locked.log()) and time.monotonic() < end:
        time.sleep(0.02)
    assert "bad-secret" not in log
    assert KEY not in log
    lines = [json.loads(line) for line in log.strip().split("\n")]
    refused = [line.get("status") for line in lines]
    assert refused.count(401) + refused.count(429) >= 1000
    assert refused.count(429) > 500  # wrong keys are throttled
    injected = [line for line in lines if "injected" in str(line.get("path"))]
    assert len(injected) == 1


def test_keys_are_compared_in_constant_time() -> None:
    tree = ast.parse(inspect.getsource(access.KeyRing))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert "hmac.compare_digest" in calls
    compares = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    assert not compares


def test_key_rings() -> None:
    assert KeyRing([]).is_empty
    ring = KeyRing(["a", "ü"])
    assert ring.accepts(b"a")
    assert ring.accepts("ü".encode())
    assert not ring.accepts(b"")


def test_a_bucket_fills_again() -> None:
    now = [0.0]
    limit = RateLimit(2.0, burst=2, clock=lambda: now[0])
    limit.take(b"a")
    limit.take(b"a")
    with pytest.raises(RateLimited) as refusal:
        limit.take(b"a")
    assert refusal.value.retry_after_s == pytest.approx(0.5)
    limit.take(b"b")
    now[0] = 0.5
    limit.take(b"a")


def test_secrets_are_read_from_a_file_or_it_is_an_error(tmp_path: Path) -> None:
    from matchserve.errors import InvalidParameter
    from matchserve.settings import Settings

    with pytest.raises(InvalidParameter):
        Settings(api_keys_file=tmp_path / "none").keys()
    assert "third" not in repr(Settings(api_keys="third"))  # type: ignore[arg-type]
