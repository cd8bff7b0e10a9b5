"""What a request costs beyond the matching itself, in processor time of the server."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.load.driver import pairs
from tests.server_process import free_port

MAX_OVERHEAD_S = 0.004
REQUESTS = 300


@pytest.mark.slow
def test_http_costs_little(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.load.overhead_server", str(port)],
        cwd=root,
        stderr=subprocess.DEVNULL,
    )
    try:
        images = next(pairs())
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            end = time.monotonic() + 60
            while True:
                try:
                    client.get("/healthz")
                    break
                except httpx.TransportError:
                    assert time.monotonic() < end
                    time.sleep(0.1)
            for _ in range(29):
                client.post("/v1/match", files=images)
            answer = client.post("/v1/match", files=images)
            assert len(answer.json()["matches"]) == 1000
            server = psutil.Process(process.pid)
            rounds = []
            for _ in range(3):
                before = server.cpu_times()
                for _ in range(REQUESTS // 3):
                    assert client.post("/v1/match", files=images).status_code == 200
                after = server.cpu_times()
                used = after.user + after.system - before.user - before.system
                rounds.append(used / (REQUESTS // 3))
    finally:
        process.terminate()
        process.wait(40)
    with capsys.disabled():
        milliseconds = ", ".join(f"{1e3 * seconds:.2f}" for seconds in rounds)
        print(f"\nserver CPU-ms per /v1/match without the matcher: {milliseconds}")  # noqa: T201
    assert min(rounds) <= MAX_OVERHEAD_S
