"""Processes that die or are told to end while requests are in flight."""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import uvicorn

from matchserve.api.app import create_app
from matchserve.api.serve import DrainingServer, WorkerServer
from matchserve.pattern import generate_pair
from matchserve.settings import Settings
from tests.conftest import encoded
from tests.patience import GUARD_S, is_exact, wait_until
from tests.security import corpus
from tests.server_process import ServerProcess, running_server
from tests.tiny_models import write_tiny_model

Images = dict[str, bytes]


@pytest.fixture(scope="module")
def images() -> Images:
    first, second, _ = generate_pair((640, 480), seed=2)
    return {"image0": encoded(first), "image1": encoded(second)}


@pytest.fixture(scope="module")
def small_images() -> Images:
    first, second, _ = generate_pair((200, 160), seed=2)
    return {"image0": encoded(first), "image1": encoded(second)}


def in_flight(client: httpx.Client) -> int:
    text = client.get("/metrics").text
    names = ("matchserve_requests_running ", "matchserve_requests_waiting ")
    return int(sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(names)))


def wait_for_requests(
    server: ServerProcess, count: int, asked: list[concurrent.futures.Future[httpx.Response]]
) -> None:
    """Wait until all requests are in the service, or the first of them is answered.

    Each worker knows its own requests only: one connection is opened to each.
    """
    with contextlib.ExitStack() as stack:
        asking: dict[int, httpx.Client] = {}
        pids = [p.pid for p in listening(server)] or [server.process.pid]
        while len(asking) < len(pids):
            client = stack.enter_context(httpx.Client(base_url=server.url, timeout=60))
            stream = client.get("/healthz").extensions["network_stream"]
            worker = worker_of(server, stream.get_extra_info("client_addr")[1])
            asking[worker.pid if worker else server.process.pid] = client
        wait_until(
            lambda: (
                sum(in_flight(client) for client in asking.values()) == count
                or any(a.done() for a in asked)
            )
        )


def is_refused(server: ServerProcess) -> bool:
    """Whether a new connection is refused, or told that the service is not ready."""
    try:
        return httpx.get(f"{server.url}/readyz", timeout=5).status_code == 503
    except httpx.TransportError:
        return True


@pytest.mark.parametrize(
    ("rounds", "workers"),
    [(1, 1), (1, 2), pytest.param(20, 1, marks=pytest.mark.slow)],
    ids=["once", "two-workers", "often"],
)
def test_sigterm_with_eight_in_flight(
    tmp_path: Path, images: Images, rounds: int, workers: int
) -> None:
    seed = random.Random(4)
    for _ in range(rounds):
        with running_server(
            tmp_path, cache_bytes=0, deadline_s=60, drain_s=60, workers=workers, max_waiting=8
        ) as server:
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                asked = [
                    pool.submit(httpx.post, f"{server.url}/v1/match", files=images, timeout=90)
                    for _ in range(8)
                ]
                wait_for_requests(server, 8, asked)
                time.sleep(seed.uniform(0, 0.3))
                server.process.send_signal(signal.SIGTERM)
                wait_until(lambda: server.process.poll() is not None or is_refused(server))
                statuses = [a.result().status_code for a in asked]
            assert statuses == [200] * 8
            assert server.process.wait(50) == 0  # the drain may take 60 s, and has nothing to do


def test_a_signal_makes_it_not_ready_at_once() -> None:
    app = create_app(Settings())
    config = uvicorn.Config(app, log_config=None)
    config.load()
    assert not app.state.service.is_draining
    DrainingServer(config).handle_exit(signal.SIGTERM, None)
    assert app.state.service.is_draining
    app.state.service.close()


def test_an_interrupted_worker_waits_for_its_parent() -> None:
    server = WorkerServer(uvicorn.Config("matchserve.api.serve:worker_app"))
    server.handle_exit(signal.SIGINT, None)
    assert not server.should_exit
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_sigterm_ends_at_once(tmp_path: Path, images: Images, workers: int) -> None:
    with running_server(tmp_path, cache_bytes=0, workers=workers) as server:
        pool = concurrent.futures.ThreadPoolExecutor(6)
        asked = [
            pool.submit(httpx.post, f"{server.url}/v1/match", files=images, timeout=60)
            for _ in range(6)
        ]
        wait_for_requests(server, 6, asked)
        server.process.send_signal(signal.SIGTERM)
        # Two signals at once would be one: wait until the first was noticed.
        wait_until(lambda: "draining" in server.log() or server.process.poll() is not None)
        server.process.send_signal(signal.SIGTERM)
        # The code says that it did not drain.
        assert server.process.wait(GUARD_S) == 128 + signal.SIGTERM
        pool.shutdown(wait=True)


def worker_of(server: ServerProcess, local_port: int) -> psutil.Process | None:
    """The worker that holds the server's end of a connection."""
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            for connection in child.net_connections("tcp"):
                if connection.raddr and connection.raddr.port == local_port:
                    return child
    return None


class Bystanders:
    """Clients that ask all the time and try once more when a connection breaks."""

    def __init__(self, server: ServerProcess, images: Images, count: int = 3) -> None:
        self.statuses: list[int] = []
        self.lost = 0
        self._stop = threading.Event()
        self._server, self._images = server, images
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def _ask(self) -> int:
        url = f"{self._server.url}/v1/match"
        return httpx.post(url, files=self._images, timeout=60).status_code

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.statuses.append(self._ask())
            except httpx.TransportError:
                try:
                    self.statuses.append(self._ask())
                except httpx.TransportError:
                    self.lost += 1

    def wait_for_answers(self) -> None:
        """Wait until everybody's request of now, or its second try, was answered."""
        enough = len(self.statuses) + self.lost + 2 * len(self._threads)
        while len(self.statuses) + self.lost < enough:
            time.sleep(0.02)

    def __enter__(self) -> Bystanders:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_a_killed_worker_is_replaced_and_runs_networks(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "models" / "tiny")
    patch: dict[str, Any] = {
        "content": bytes(32 * 32),
        "headers": {"Content-Type": "application/octet-stream"},
    }
    with running_server(tmp_path, workers=2, models_dir=tmp_path / "models") as server:
        wait_for_starts(server, 2)
        for worker in listening(server):
            starts = started(server)
            worker.kill()
            wait_for_starts(server, starts + 1)
        answer = httpx.post(f"{server.url}/v1/patches?model=tiny", timeout=30, **patch)
        assert answer.status_code == 200
        assert server.stop() == 0


def listening(server: ServerProcess) -> list[psutil.Process]:
    """The workers: the processes below the first that hold its socket."""
    below = psutil.Process(server.process.pid).children(recursive=True)
    return [p for p in below if any(c.laddr.port == server.port for c in p.net_connections("tcp"))]


@pytest.mark.slow
def test_kill_9_of_a_worker_harms_its_own_request_only(
    tmp_path: Path,
    images: Images,
    small_images: Images,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running_server(tmp_path, workers=2, cache_bytes=0) as server:
        wait_for_starts(server, 2)
        with Bystanders(server, small_images) as others:
            times = []
            for _ in range(20):
                times.append(kill_the_worker_of_one_request(server, images))
                # Else the next kill would hit somebody's second try.
                others.wait_for_answers()
        with capsys.disabled():
            print(  # noqa: T201
                f"\n20 workers killed; replaced after {np.median(times):.1f} s in the middle, "
                f"{max(times):.1f} s at most; others saw {Counter(others.statuses)}"
            )
        assert np.median(times) <= 5 or not is_exact()
        assert others.lost == 0
        assert set(others.statuses) <= {200, 429}
        assert others.statuses.count(200) > 20
        assert httpx.get(f"{server.url}/readyz", timeout=30).status_code == 200
        assert server.stop() == 0


def kill_the_worker_of_one_request(server: ServerProcess, images: Images) -> float:
    starts = started(server)
    request = httpx.Request("POST", f"{server.url}/v1/match", files=images)
    body = request.read()
    head = (
        f"POST /v1/match HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: {request.headers['Content-Type']}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(head.encode() + body)
        worker = None
        for _ in range(200):
            worker = worker or worker_of(server, connection.getsockname()[1])
        assert worker is not None
        worker.kill()
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(10) == b""
    return wait_for_starts(server, starts + 1)


def started(server: ServerProcess) -> int:
    """How many workers have begun to serve so far."""
    return server.log().count("Application startup complete")


def wait_for_starts(server: ServerProcess, count: int) -> float:
    """Seconds until that many workers have begun to serve."""
    start = time.monotonic()
    while started(server) < count:
        assert time.monotonic() - start < GUARD_S, "the worker was not replaced"
        time.sleep(0.05)
    return time.monotonic() - start


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    with running_server(tmp_path, workers=2, default_model="rootsift") as server:
        wait_for_starts(server, 2)
        below = psutil.Process(server.process.pid).children(recursive=True)
        server.process.kill()
        _, alive = psutil.wait_procs(below, timeout=GUARD_S)
        assert not alive
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/healthz", timeout=5)


def test_a_worker_without_its_model_takes_no_requests(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "models" / "tiny")
    with running_server(
        tmp_path, workers=2, models_dir=tmp_path / "models", default_model="tiny"
    ) as server:
        wait_for_starts(server, 2)
        whole = (model / "model.onnx").read_bytes()
        (model / "model.onnx").write_bytes(whole[:100])
        listening(server)[0].kill()
        wait_until(lambda: "worker cannot serve" in server.log())
        statuses = [httpx.get(f"{server.url}/readyz", timeout=30).status_code for _ in range(30)]
        assert statuses == [200] * 30
        (model / "model.onnx").write_bytes(whole)
        wait_for_starts(server, 3)


def test_workers_that_all_lack_the_model_end_with_its_exit_code(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "models" / "tiny")
    (model / "model.onnx").write_bytes(b"")
    server = ServerProcess(
        tmp_path / "log", workers=2, models_dir=tmp_path / "models", default_model="tiny"
    )
    try:
        assert server.process.wait(GUARD_S) == 78
    finally:
        server.stop()
    assert "Traceback" not in server.log()


def test_a_request_longer_than_the_drain_ends_on_time(tmp_path: Path) -> None:
    """D-3: the service ends when its drain time is over, whatever still runs."""
    slow = corpus.scans_jpeg(99)
    with running_server(tmp_path, drain_s=1, deadline_s=60, default_model="rootsift") as server:
        pool = concurrent.futures.ThreadPoolExecutor(2)
        files = {"image0": slow, "image1": slow}
        asked = [
            pool.submit(httpx.post, f"{server.url}/v1/match", files=files, timeout=90)
            for _ in range(2)
        ]
        wait_for_requests(server, 2, asked)
        below = psutil.Process(server.process.pid).children(recursive=True)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(50) == 0  # the requests may take 60 s
        for answer in asked:
            with contextlib.suppress(httpx.TransportError):
                assert answer.result().status_code in (200, 503)
        _, alive = psutil.wait_procs(below, timeout=GUARD_S)
        assert not alive
