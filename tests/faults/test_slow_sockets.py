"""Sockets that say nothing, or next to nothing, and an honest client beside them."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from matchserve.pattern import generate_pair
from tests.conftest import encoded
from tests.patience import GUARD_S, wait_until
from tests.server_process import ServerProcess, running_server

HEAD = b"POST /v1/match HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


class Honest:
    """A client that asks for matches all the while."""

    def __init__(self, server: ServerProcess) -> None:
        first, second, _ = generate_pair((200, 160), seed=2)
        self._images = {"image0": encoded(first), "image1": encoded(second)}
        self._server = server
        self._stop = threading.Event()
        self.times: list[float] = []
        self.bad: list[int] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            start = time.perf_counter()
            answer = httpx.post(f"{self._server.url}/v1/match", files=self._images, timeout=60)
            self.times.append(time.perf_counter() - start)
            if answer.status_code != 200:
                self.bad.append(answer.status_code)

    def __enter__(self) -> Honest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def seconds_until_all_are_closed(server: ServerProcess, count: int, limit_s: float) -> float:
    """Half of the sockets stay silent, the others send a byte a second."""
    waiting = selectors.DefaultSelector()
    slow = HEAD + b"Content-Length: 1000\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for number in range(count):
            connection = socket.create_connection(("127.0.0.1", server.port))
            stack.enter_context(contextlib.closing(connection))
            connection.setblocking(False)
            waiting.register(connection, selectors.EVENT_READ, number % 2)
        start = time.monotonic()
        sent = 0
        while waiting.get_map() and time.monotonic() - start < limit_s:
            for key, _ in waiting.select(0.2):
                with contextlib.suppress(ConnectionError):
                    if key.fileobj.recv(1000):  # type: ignore[union-attr]
                        continue
                waiting.unregister(key.fileobj)
            if time.monotonic() - start > sent:
                for key in list(waiting.get_map().values()):
                    if key.data:
                        with contextlib.suppress(OSError):
                            key.fileobj.send(slow[sent : sent + 1])  # type: ignore[union-attr]
                sent += 1
        assert not waiting.get_map(), f"{len(waiting.get_map())} sockets are still open"
        return time.monotonic() - start


def test_slow_sockets_are_closed(tmp_path: Path) -> None:
    with running_server(tmp_path, receive_s=2, cache_bytes=0) as server, Honest(server) as honest:
        # The deadline of this server is 2 s; a byte a second would keep them for 130 s.
        seconds_until_all_are_closed(server, 200, 60)
    assert not honest.bad
    assert honest.times


def test_bodies_that_do_not_come_take_no_slots(tmp_path: Path) -> None:
    """Twice as many as there are slots, each with a complete head."""
    with running_server(
        tmp_path, cache_bytes=0, max_running=1, max_waiting=1, receive_s=2 * GUARD_S
    ) as server:
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                connection = socket.create_connection(("127.0.0.1", server.port))
                stack.enter_context(contextlib.closing(connection))
                connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
            first, second, _ = generate_pair((200, 160), seed=2)
            images = {"image0": encoded(first), "image1": encoded(second)}
            url = f"{server.url}/v1/match"
            wait_until(lambda: httpx.post(url, files=images, timeout=60).status_code == 200)
            with Honest(server) as honest:
                time.sleep(1)
        assert honest.times
        assert not honest.bad


@pytest.mark.slow
def test_four_hundred_slow_sockets_with_the_default_deadline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        running_server(tmp_path, cache_bytes=0, max_connections_per_address=1000) as server,
        Honest(server) as honest,
    ):
        seconds = seconds_until_all_are_closed(server, 400, 40)
    with capsys.disabled():
        print(  # noqa: T201
            f"\n400 slow sockets closed after {seconds:.1f} s; "
            f"{len(honest.times)} honest requests served, slowest {max(honest.times):.2f} s"
        )
    assert seconds <= 16
    assert not honest.bad


def test_a_client_that_keeps_its_connection_is_left_alone(tmp_path: Path) -> None:
    with (
        running_server(tmp_path, receive_s=1, keep_alive_s=10) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        first = client.get("/healthz")
        one = first.extensions["network_stream"].get_extra_info("client_addr")
        time.sleep(2.0)
        second = client.get("/healthz")
        two = second.extensions["network_stream"].get_extra_info("client_addr")
    assert one == two


def test_departed_clients_leave_no_work_and_no_place(tmp_path: Path) -> None:
    first, second, _ = generate_pair((900, 700), seed=2)
    images = {"image0": encoded(first), "image1": encoded(second)}
    with running_server(tmp_path, cache_bytes=0) as server:

        def is_idle() -> bool:
            text = httpx.get(f"{server.url}/metrics", timeout=60).text
            return all(
                f"matchserve_{name} 0.0" in text
                for name in ("requests_running", "requests_waiting", "inflight_bytes")
            )

        def cpu_s(ask: Callable[[], object], count: int) -> float:
            start = server.cpu_s()
            for _ in range(count):
                ask()
            wait_until(is_idle)
            return (server.cpu_s() - start) / count

        def leave() -> None:
            with contextlib.suppress(httpx.TimeoutException):
                httpx.post(f"{server.url}/v1/match", files=images, timeout=0.1)

        def stay() -> None:
            answer = httpx.post(f"{server.url}/v1/match", files=images, timeout=60)
            assert answer.status_code == 200

        stay()
        left, whole = cpu_s(leave, 8), cpu_s(stay, 2)
        # What runs when a client leaves comes to the end of its stage; the rest is not begun.
        assert left < 0.75 * whole


def test_an_answer_that_nobody_reads_is_dropped(tmp_path: Path) -> None:
    first, _, _ = generate_pair((900, 700), seed=2)
    request = httpx.Request(
        "POST",
        "http://x/v1/features",
        files={"image": encoded(first)},
        data={"max_keypoints": "8000"},
    )
    body = request.read()
    head = (
        f"POST /v1/features HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: {request.headers['Content-Type']}\r\n\r\n"
    )
    with running_server(tmp_path, send_s=1) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(head.encode() + body)
        local = connection.getsockname()[1]

        def is_open() -> bool:
            found = psutil.Process(server.process.pid).net_connections("tcp")
            return any(
                c.raddr and c.raddr.port == local and c.status == "ESTABLISHED" for c in found
            )

        def waited_until(is_wanted: Callable[[], bool]) -> bool:
            end = time.monotonic() + 30
            while not is_wanted() and time.monotonic() < end:
                time.sleep(0.05)
            return is_wanted()

        assert waited_until(is_open)
        assert waited_until(lambda: not is_open())
        assert '"status":200' in server.log()
