"""What surrounds the process: files that it must not write, logs, descriptors, memory, clocks."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import httpx
import psutil
import pytest

from matchserve.api.app import create_app
from matchserve.clock import Deadline
from matchserve.engine.workers import _with_typed_memory_errors
from matchserve.errors import ImageTooLarge, InvalidParameter
from matchserve.pattern import generate
from matchserve.settings import Settings
from tests.conftest import encoded
from tests.server_process import free_port
from tests.tiny_models import write_tiny_model

GOOD = encoded(generate((160, 120), seed=1))
ROOT = Path(__file__).resolve().parents[2]


class Serving:
    """`matchserve serve` with an environment of the test's making."""

    def __init__(self, cwd: Path, limits: Callable[[], None] | None = None, **env: str) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "matchserve", "serve", "--port", str(port)],
            cwd=cwd,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(cwd), **env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=limits,
        )

    def wait_until_alive(self) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                assert httpx.get(f"{self.url}/healthz", timeout=5).status_code == 200
                return
            except httpx.TransportError:
                assert self.process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.1)

    def __enter__(self) -> Serving:
        self.wait_until_alive()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


def test_serving_writes_no_file(tmp_path: Path) -> None:
    """Neither below the home directory, nor in the working directory, nor for temporary files."""
    models = tmp_path / "models"
    write_tiny_model(models / "tiny")
    home = tmp_path / "home"
    home.mkdir()
    with Serving(
        home,
        MATCHSERVE_MODELS_DIR=str(models),
        MATCHSERVE_DEFAULT_MODEL="tiny",
        TMPDIR=str(home),
        PYTHONDONTWRITEBYTECODE="1",
    ) as server:
        files = {"image0": GOOD, "image1": GOOD}
        assert httpx.post(f"{server.url}/v1/match", files=files, timeout=60).status_code == 200
        time.sleep(1)
        assert [str(p.relative_to(home)) for p in home.rglob("*")] == []


def test_an_undrained_log_stops_nothing(tmp_path: Path) -> None:
    """The pipe of standard error is never read: it is full after 64 kB."""
    with (
        Serving(tmp_path, MATCHSERVE_DEFAULT_MODEL="rootsift") as server,
        httpx.Client(base_url=server.url, timeout=20) as client,
    ):
        for number in range(1500):
            assert client.get(f"/nothing/{'x' * 100}{number}").status_code == 404


def test_few_descriptors_make_few_log_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)

    with Serving(tmp_path, limit, MATCHSERVE_DEFAULT_MODEL="rootsift") as server:
        import contextlib
        import socket

        with contextlib.ExitStack() as stack:
            port = int(server.url.rpartition(":")[2])
            for _ in range(100):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            time.sleep(5)
        lines = log.read_text(encoding="utf-8", errors="replace").count("\n")
        assert lines < 500
        time.sleep(1.5)
        assert httpx.get(f"{server.url}/healthz", timeout=20).status_code == 200


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("std::bad_alloc"), cv2.error("Insufficient memory")]
)
def test_lack_of_memory_is_413(error: Exception) -> None:
    """D-8."""
    if isinstance(error, cv2.error):
        error.code = cv2.Error.StsNoMem

    def work() -> None:
        raise error

    with pytest.raises(ImageTooLarge):
        _with_typed_memory_errors(work)


def test_a_process_with_little_memory_refuses_and_lives(tmp_path: Path) -> None:
    """D-8: the kernel gives the process 80 MB more, less than a tile's scale space takes."""
    large = {"image0": encoded(generate((2000, 1500), seed=1)), "image1": GOOD}
    small = {"image0": GOOD, "image1": GOOD}
    with Serving(
        tmp_path, MATCHSERVE_DEFAULT_MODEL="rootsift", MATCHSERVE_DEADLINE_S="120"
    ) as server:
        url = f"{server.url}/v1/match"
        assert httpx.post(url, files=small, timeout=130).status_code == 200
        process = psutil.Process(server.process.pid)
        limit = process.memory_info().vms + 80_000_000
        process.rlimit(psutil.RLIMIT_AS, (limit, limit))
        for _ in range(3):
            answer = httpx.post(url, files=large, timeout=130)
            assert (answer.status_code, answer.json()["code"]) == (413, "image_too_large")
            assert httpx.post(url, files=small, timeout=130).status_code == 200


def test_other_errors_of_libraries_stay_what_they_are() -> None:
    def work() -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        _with_typed_memory_errors(work)


def test_deadlines_do_not_follow_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """D-12: the clock is set forward and back by a day."""
    deadline = Deadline(5)
    for day in (86_400, -86_400):
        monkeypatch.setattr(time, "time", lambda day=day: 1.8e9 + day)
        assert not deadline.is_over
        assert 0 < deadline.remaining_s() <= 5
    # Leases of jobs are read by other processes, and their times by people.
    leases = ROOT / "matchserve" / "jobs" / "table.py"
    modules = [path for path in (ROOT / "matchserve").rglob("*.py") if path != leases]
    assert not [path for path in modules if "time.time(" in path.read_text(encoding="utf-8")]


def test_errors_after_a_departure_are_not_reported_as_lost(tmp_path: Path) -> None:
    complaints: list[dict[str, Any]] = []
    app = create_app(Settings(default_model="rootsift"))
    service = app.state.service

    async def body() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        for number in range(30):
            gone = asyncio.Event()

            async def receive(gone: asyncio.Event = gone) -> dict[str, str]:
                await gone.wait()
                return {"type": "http.disconnect"}

            request: Any = SimpleNamespace(receive=receive, state=SimpleNamespace())
            service.start_deadline(request)

            def work(_: object, number: int = number) -> None:
                time.sleep(0.002 * (number % 5))
                raise InvalidParameter("an error that nobody waits for")

            running = asyncio.ensure_future(service.run(request, 0.1, work))
            await asyncio.sleep(0.001 * (number % 7))
            if number % 2:
                running.cancel()
            gone.set()
            await asyncio.gather(running, return_exceptions=True)
            del running, request
        await asyncio.sleep(0.1)
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(body())
    service.close()
    assert complaints == []
    assert threading.active_count() < 100


def test_an_error_at_the_moment_of_a_departure_is_not_reported_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complaints: list[dict[str, Any]] = []
    running: list[asyncio.Future[None]] = []
    service = create_app(Settings(default_model="rootsift")).state.service

    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, seen: complaints.append(seen))

        async def receive() -> None:
            await asyncio.Event().wait()

        async def fail(*_: object) -> None:
            running[0].cancel()
            raise InvalidParameter("an error that nobody waits for")

        monkeypatch.setattr(service, "_admitted", fail)
        request: Any = SimpleNamespace(receive=receive, state=SimpleNamespace())
        service.start_deadline(request)
        running.append(asyncio.ensure_future(service.run(request, 0.1, lambda _: None)))
        await asyncio.wait(running)
        assert running.pop().cancelled()
        gc.collect()

    asyncio.run(body())
    service.close()
    assert complaints == []
