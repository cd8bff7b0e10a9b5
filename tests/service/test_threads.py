"""Few threads, however many ask: each keeps memory, and what is counted on the loop stays there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from starlette.requests import Request

from matchserve import defaults
from matchserve.api import routes
from matchserve.api.body import BodyBudget, received
from matchserve.api.requests import parse_match
from matchserve.engine import admission
from matchserve.errors import InvalidParameter
from matchserve.hardware import available_cpus
from tests.in_process import served
from tests.load.driver import lone_median_s, pairs
from tests.patience import GUARD_S, wait_until
from tests.server_process import ServerProcess, running_server

PATCH: dict[str, Any] = {
    "content": np.arange(1024, dtype=np.uint32).astype(np.uint8).tobytes(),
    "headers": {"Content-Type": "application/octet-stream"},
}

JSON_PATHS = [
    *("/v1/match", "/v1/features", "/v1/features/match", "/v1/patches", "/v1/match/batch"),
    "/v2/models/rootsift/infer",
]


def test_many_clients_start_few_threads(server: ServerProcess, http: httpx.Client) -> None:
    url = f"{server.url}/v1/patches?model=tiny"
    process = psutil.Process(server.process.pid)
    assert http.post("/v1/patches?model=tiny", **PATCH).status_code == 200
    before = process.num_threads()
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda _: httpx.post(url, timeout=60, **PATCH), range(120)))
    assert {a.status_code for a in answers} <= {200, 429}
    # Those that parse and those that run, where the first request started one of each.
    assert process.num_threads() <= before + 2 * max(2, available_cpus())


def _page_faults(server: ServerProcess) -> int:
    stat = Path(f"/proc/{server.process.pid}/stat").read_text(encoding="ascii")
    return int(stat.rpartition(")")[2].split()[7])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="not Linux")
@pytest.mark.slow
def test_memory_is_kept_from_request_to_request(tmp_path: Path) -> None:
    """Asking the system for every page again costs a tenth of the speed: 20,000 for a pair."""
    stock = pairs()
    with running_server(tmp_path, cache_bytes=0, default_model="rootsift") as server:

        def ask() -> None:
            answer = httpx.post(f"{server.url}/v1/match", files=next(stock), timeout=60)
            assert answer.status_code == 200

        for _ in range(12):
            ask()
        before = _page_faults(server)
        for _ in range(6):
            ask()
        assert (_page_faults(server) - before) / 6 < 5000


def test_a_request_kept_to_one_thread_takes_no_more_than_one_core(tmp_path: Path) -> None:
    """On a busy machine it takes less than one, so other work cannot make this fail."""
    stock = pairs()
    with running_server(tmp_path, cache_bytes=0, lone_request_threads=1) as server:
        lone_median_s(server.url, stock, 1)
        start, cpu_s = time.perf_counter(), server.cpu_s()
        lone_median_s(server.url, stock, 3)
        assert server.cpu_s() - cpu_s <= 1.1 * (time.perf_counter() - start)


def test_keys_and_rates_are_looked_at_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    with served() as (client, service):
        monkeypatch.setattr(
            service.access, "check", lambda _: seen.add(threading.current_thread().name)
        )
        for _ in range(3):
            assert client.get("/info").status_code == 200
        assert client.get("/v2/models/sift").status_code == 200
    assert len(seen) == 1
    assert "worker" not in seen.pop().lower()


def test_bodies_are_parsed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def refuse(*_: object) -> None:
        threads.append(threading.current_thread().name)
        raise InvalidParameter("seen")

    archives = {"features0": b"PK", "features1": b"PK"}
    requests: list[tuple[str, str, dict[str, Any]]] = [
        *(("api.jsonbody._outside_strings", path, {"json": {}}) for path in JSON_PATHS),
        ("api.multipart._Reader", "/v1/match", {"files": {"image0": b"x"}}),
        ("archives._check_directory", "/v1/features/match", {"files": archives}),
    ]
    with served(default_model="rootsift") as (client, _):
        for parser, path, body in requests:
            with monkeypatch.context() as patched:
                patched.setattr(f"matchserve.{parser}", refuse)
                assert client.post(path, **body).status_code == 422, path
    assert [name.rpartition("_")[0] for name in threads] == len(requests) * ["matchserve-helper"]


def test_who_is_refused_is_refused_before_parsing_and_keeps_the_connection(
    monkeypatch: pytest.MonkeyPatch, pair: dict[str, bytes]
) -> None:
    parsed: list[int] = []
    release = threading.Event()

    def counted(*args: Any) -> Any:
        parsed.append(1)
        return parse_match(*args)

    monkeypatch.setattr(routes, "parse_match", counted)
    monkeypatch.setattr(admission, "ARRIVAL_S", 60.0)  # however busy this machine is
    with served(max_running=1, max_waiting=1, default_model="rootsift") as (client, service):
        matcher = service.model("").matcher
        match = matcher.match

        def held(*args: Any) -> Any:
            release.wait(2 * GUARD_S)
            return match(*args)

        monkeypatch.setattr(matcher, "match", held)

        def ask(_: int) -> int:
            with httpx.Client(base_url=client.base_url, timeout=60, verify=False) as own:
                answer = own.post("/v1/match", files=pair)
                if answer.status_code == 429:
                    refused.append(answer)
                    again = own.get("/healthz")
                    addresses.append({_address(answer), _address(again)})
                return answer.status_code

        refused: list[httpx.Response] = []
        addresses: list[set[object]] = []
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(ask, number) for number in range(12)]
            try:
                wait_until(lambda: len(addresses) >= 10)
            finally:
                release.set()
            assert sorted(a.result() for a in asked) == [200] * 2 + [429] * 10
    assert all(len(both) == 1 for both in addresses)
    assert {a.json()["code"] for a in refused} == {"overloaded"}
    assert len(parsed) == 2


def _address(answer: httpx.Response) -> object:
    return answer.extensions["network_stream"].get_extra_info("client_addr")


def test_a_probe_does_not_wait_for_bodies_that_are_parsed() -> None:
    release = threading.Event()
    with served(default_model="rootsift") as (client, service):
        parsing = [service._helpers.submit(release.wait, 2 * GUARD_S) for _ in range(64)]
        try:
            assert client.get("/readyz", timeout=GUARD_S).status_code == 200
            assert not any(one.done() for one in parsing)
        finally:
            release.set()


def test_many_probes_of_a_hanging_model_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    probes: list[float] = []
    release = threading.Event()

    def hang(timeout_s: float) -> None:
        probes.append(timeout_s)
        release.wait(2 * GUARD_S)

    with served() as (client, service):
        asking: list[int] = []
        probe = service.probe

        async def counted() -> None:
            asking.append(1)
            await probe()

        monkeypatch.setattr(service, "probe", counted)
        monkeypatch.setattr(service.models[defaults.MODEL], "probe", hang)
        url = str(client.base_url.join("/readyz"))
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(httpx.get, url, timeout=3 * GUARD_S) for _ in range(12)]
            try:
                wait_until(lambda: len(asking) == 12 and bool(probes))
                # The probe still hangs, and nobody else waits for it.
                assert client.post("/v1/patches?model=sift", **PATCH).status_code == 200
            finally:
                release.set()
            assert [a.result().status_code for a in asked] == [200] * 12
    assert len(probes) == 1


def test_a_parsed_body_is_not_kept() -> None:
    size, sent = 8_000_000, 0

    async def receive() -> dict[str, Any]:
        nonlocal sent
        sent += 1
        return {"type": "http.request", "body": bytes(size // 8), "more_body": sent < 8}

    async def ask() -> tuple[int, int]:
        budget = BodyBudget(2 * size)
        request = Request({"type": "http", "method": "POST", "headers": []}, receive)
        async with received(request, 2 * size, budget) as data:
            assert len(data) == budget.held == size
            del data
            kept = tracemalloc.get_traced_memory()[0]
        return kept, budget.held

    tracemalloc.start()
    try:
        kept, held = asyncio.run(ask())
    finally:
        tracemalloc.stop()
    assert kept < size / 4
    assert held == 0
