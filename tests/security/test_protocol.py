"""HTTP itself as a weapon: tiny chunks, two lengths, pipelined requests, many sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.patience import allowed_s, wait_until
from tests.security.watch import Watch
from tests.server_process import ServerProcess, running_server

HEAD = b"POST /v1/match HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("protocol")
    with running_server(
        folder, receive_s=2, send_s=1, keep_alive_s=1, default_model="rootsift"
    ) as server:
        yield server


def is_open(server: ServerProcess, client_port: int) -> bool:
    found = psutil.Process(server.process.pid).net_connections("tcp")
    return any(c.raddr and c.raddr.port == client_port for c in found)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection on which it has sent nothing."""
    try:
        return connection.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def is_served(server: ServerProcess) -> bool:
    try:
        return httpx.get(f"{server.url}/healthz", timeout=20).status_code == 200
    except httpx.TransportError:
        return False


def wait_until_closed(*connections: socket.socket, limit_s: float = 60) -> None:
    """Read from each connection until the server closes it."""
    end = time.monotonic() + limit_s
    for connection in connections:
        connection.settimeout(max(0.01, end - time.monotonic()))
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(65536):
                assert time.monotonic() < end, "the connection is still open"


def complete_log(server: ServerProcess) -> str:
    """Return the log after all lines so far are written: another thread writes them in order."""
    mark = uuid.uuid4().hex
    assert httpx.get(f"{server.url}/{mark}", timeout=20).status_code == 404
    wait_until(lambda: mark in server.log())
    return server.log()


def test_a_body_in_tiny_chunks_is_refused_and_closed(slow_server: ServerProcess) -> None:
    # Spaces before an object are JSON: without the limit of pieces, the answer is that no image
    # was sent.
    body = b"1\r\n \r\n" * 20_000 + b"2\r\n{}\r\n0\r\n\r\n"
    answer = slow_server.raw(CHUNKED + body, timeout_s=30)
    assert answer.split(b"\r\n")[0].startswith(b"HTTP/1.1 400") or not answer


def test_tiny_chunks_do_not_stop_the_event_loop(slow_server: ServerProcess) -> None:
    data = CHUNKED + b"1\r\na\r\n" * 300_000

    def attack() -> None:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                slow_server.raw(data, timeout_s=30)

    with Watch(slow_server) as quiet:
        time.sleep(2)
    for _ in range(3):
        with Watch(slow_server) as seen:
            threads = [threading.Thread(target=attack) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        # Before tiny chunks were refused, eight such clients stopped it for 14 s.
        allowed = allowed_s(0.2, max(0.1, quiet.health_s), 10)
        if seen.health_s <= allowed:
            return
    assert seen.health_s <= allowed


def test_ordinary_chunks_are_taken(slow_server: ServerProcess) -> None:
    # Many more pieces than are free, but sent within this server's 2 s on a busy machine too.
    body = b'{"image0": "' + b"A" * 500_000 + b'"}'
    pieces = (body[i : i + 1024] for i in range(0, len(body), 1024))
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{slow_server.url}/v1/match", content=pieces, headers=headers, timeout=30)
    assert answer.status_code == 422
    few = iter([b"{", b'"image0"', b":", b'""', b"}"])
    answer = httpx.post(f"{slow_server.url}/v1/match", content=few, headers=headers, timeout=30)
    assert answer.status_code == 422


@pytest.mark.parametrize("order", [0, 1])
def test_a_length_and_chunks_are_refused_and_closed(slow_server: ServerProcess, order: int) -> None:
    lengths = [b"Content-Length: 6\r\n", b"Transfer-Encoding: chunked\r\n"]
    request = HEAD + lengths[order] + lengths[1 - order] + b"\r\n0\r\n\r\n"
    answer = slow_server.raw(request + GET, timeout_s=10)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1  # the connection is not used again
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize("path", [b"/v1/match", b"/nowhere", b"/healthz"])
@pytest.mark.parametrize("body", [b"zz\r\n", b"5\r\nhello\r\nzz\r\n", b"1\r\nab\r\n"])
def test_a_malformed_body_gets_one_response_and_no_traceback(
    slow_server: ServerProcess, path: bytes, body: bytes
) -> None:
    """The application starts on the head, and must not answer after the protocol has refused."""
    before = len(slow_server.log())
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % path
    answer = slow_server.raw(head + body, timeout_s=20)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert "Traceback" not in complete_log(slow_server)[before:]


def test_a_body_that_turns_malformed_while_it_is_awaited_leaves_no_traceback(
    slow_server: ServerProcess,
) -> None:
    before = len(slow_server.log())
    with socket.create_connection(("127.0.0.1", slow_server.port), timeout=20) as connection:
        connection.sendall(CHUNKED + b"5\r\nhello\r\n")
        time.sleep(0.2)
        connection.sendall(b"zz\r\n")
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(65536):
                answer += data
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert "Traceback" not in complete_log(slow_server)[before:]


def test_a_half_request_behind_a_whole_one_is_closed(slow_server: ServerProcess) -> None:
    half = HEAD + b"Content-Length: 1000\r\n\r\n{"
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", slow_server.port)))
            for _ in range(20)
        ]
        for connection in connections:
            connection.sendall(GET + half)
        wait_until_closed(*connections)


def test_half_a_head_behind_a_whole_request_is_closed(slow_server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", slow_server.port)) as connection:
        connection.sendall(GET + b"POST /v1/match HTTP/1.1\r\nHost")
        wait_until_closed(connection)


def test_a_small_response_that_nobody_reads_is_dropped(slow_server: ServerProcess) -> None:
    """Pipelined requests whose responses together stay below the transport's high-water mark."""
    before = len(slow_server.log())
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", slow_server.port))
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 60)
        local = connection.getsockname()[1]
        wait_until(lambda: "/openapi.json" in slow_server.log()[before:])  # it was accepted
        wait_until(lambda: not is_open(slow_server, local))


def test_half_sent_requests_do_not_delay_a_shutdown(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            running_server(tmp_path, receive_s=30, drain_s=20, default_model="rootsift")
        )
        for _ in range(50):
            connection = socket.create_connection(("127.0.0.1", server.port))
            stack.enter_context(contextlib.closing(connection))
            connection.sendall(GET + HEAD + b"Content-Length: 1000\r\n\r\n{")
        time.sleep(0.5)
        start = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start < 10


def test_one_address_has_a_limited_number_of_connections(tmp_path: Path) -> None:
    with (
        running_server(
            tmp_path, max_connections_per_address=10, default_model="rootsift"
        ) as server,
        contextlib.ExitStack() as stack,
    ):
        connections: list[socket.socket] = []
        for _ in range(40):
            connection = socket.create_connection(("127.0.0.1", server.port))
            stack.enter_context(contextlib.closing(connection))
            connections.append(connection)
        wait_until(lambda: sum(map(is_closed, connections)) == 30)
        stack.close()
        wait_until(lambda: is_served(server))


def test_a_forwarded_address_counts_only_from_a_trusted_proxy(tmp_path: Path) -> None:
    limited = {"requests_per_s": 0.001, "request_burst": 2, "default_model": "rootsift"}

    def statuses(server: ServerProcess, address: str = "10.0.0.{}") -> list[int]:
        return [
            httpx.get(
                f"{server.url}/v1/models", headers={"X-Forwarded-For": address.format(n)}
            ).status_code
            for n in range(4)
        ]

    with running_server(tmp_path, **limited) as server:
        assert statuses(server) == [200, 200, 429, 429]
    with running_server(tmp_path, trusted_proxies="127.0.0.0/8", **limited) as server:
        assert statuses(server) == [200, 200, 200, 200]
        # One client has all addresses of an IPv6 network.
        assert statuses(server, "2001:db8:0:1::{}") == [200, 200, 429, 429]
        assert statuses(server, "2001:db8:0:1{}::1") == [200, 200, 200, 200]
