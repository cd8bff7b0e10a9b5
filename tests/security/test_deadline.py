"""One deadline from the first byte of a request to the last, and probes that share no threads."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager

from matchserve.api.service import Service
from matchserve.pattern import generate
from tests.conftest import encoded
from tests.in_process import served
from tests.security.corpus import FORM, form

GOOD = encoded(generate((160, 120), seed=1))
BODY = form("image0", GOOD, other=GOOD)
HEAD = (
    f"POST /v1/match HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {FORM}\r\n"
    f"Content-Length: {len(BODY)}\r\n\r\n"
).encode()
DEADLINE_S, SENDING_S = 8.0, 6.0


def test_receiving_counts_against_the_deadline() -> None:
    """A deadline that begins with the work would end 8 s after the last byte, not 2 s."""
    release = threading.Event()
    with served(default_model="rootsift", deadline_s=DEADLINE_S, cache_bytes=0) as (
        client,
        service,
    ):

        def hang(*_: object) -> None:
            release.wait(60)

        service.model("").matcher.match = hang  # type: ignore[method-assign, assignment]
        port = client.base_url.port or 0
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(HEAD + BODY[:100])
            time.sleep(SENDING_S)
            connection.sendall(BODY[100:])
            sent = time.monotonic()
            answer = connection.recv(65536)
            after_s = time.monotonic() - sent
        release.set()
    assert b" 504 " in answer.split(b"\r\n")[0]
    assert after_s < DEADLINE_S


@contextmanager
def busy_parsers(service: Service) -> Iterator[None]:
    """Keep every thread that parses bodies busy, and more work than they can do."""
    release = threading.Event()
    blocked = [service._helpers.submit(release.wait, 60) for _ in range(16)]
    try:
        yield
        assert not any(future.done() for future in blocked)
    finally:
        release.set()
        wait(blocked)


def test_waiting_for_a_parser_counts_against_the_deadline() -> None:
    with (
        served(default_model="rootsift", deadline_s=0.5, cache_bytes=0) as (client, service),
        busy_parsers(service),
    ):
        headers = {"Content-Type": FORM}
        assert (
            client.post("/v1/match", content=BODY, headers=headers, timeout=20).status_code == 504
        )


def test_probes_do_not_wait_for_parsers() -> None:
    """Six uploads whose headers took long once delayed /readyz by a minute."""
    with (
        served(default_model="rootsift", cache_bytes=0) as (client, service),
        busy_parsers(service),
    ):
        for path in ("/healthz", "/readyz", "/metrics", "/v2/health/ready"):
            assert client.get(path, timeout=20).status_code == 200
