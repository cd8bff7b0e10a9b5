"""The timers of a connection, with a transport whose client reads as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from matchserve.api import protocol
from matchserve.api.protocol import BoundedProtocol, ConnectionLimits
from tests.patience import GUARD_S

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Transport(asyncio.Transport):
    """Holds what is written as unsent until the test says that the client reads."""

    def __init__(self, address: str = "10.0.0.1") -> None:
        super().__init__()
        self.address = address
        self.unsent = 0
        self.is_closed = False
        self.aborted = asyncio.Event()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.address, 1) if name == "peername" else default

    def write(self, data: Any) -> None:
        self.unsent += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True
        self.aborted.set()


async def app(_: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def responded(data: bytes) -> tuple[BoundedProtocol, Transport]:
    """Return a connection whose request was responded to."""
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_keep_alive=3600)
    config.load()
    connection = BoundedProtocol(config, ServerState(), {})
    transport = Transport()
    connection.connection_made(transport)
    connection.data_received(data)
    await asyncio.gather(*connection.server_state.tasks)
    return connection, transport


def has_timer(connection: BoundedProtocol) -> bool:
    return connection._receive_timer is not None


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(BoundedProtocol, "limits", ConnectionLimits(receive_s=3600, send_s=0.001))
    yield
    BoundedProtocol._open.clear()


def test_a_short_response_that_nobody_reads_is_dropped() -> None:
    """It never fills the transport's buffer, so asyncio never says that the client is slow."""

    async def body() -> None:
        connection, transport = await responded(GET)
        assert transport.unsent
        await asyncio.wait_for(transport.aborted.wait(), GUARD_S)
        connection.connection_lost(None)

    asyncio.run(body())


def test_a_short_response_that_was_read_late_keeps_its_connection() -> None:
    async def body() -> None:
        connection, transport = await responded(GET)
        transport.unsent = 0
        await asyncio.sleep(0.01)
        assert connection._send_timer is None
        assert not transport.is_closed
        connection.connection_lost(None)

    asyncio.run(body())


@pytest.mark.parametrize("close", ["idle", "malformed", "shutdown"])
def test_a_closed_connection_ends_although_nobody_reads(
    close: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedProtocol, "limits", ConnectionLimits(receive_s=3600, send_s=3600))
    monkeypatch.setattr(protocol, "CLOSE_S", 0.001)

    async def body() -> None:
        connection, transport = await responded(GET)
        assert not transport.is_closing()
        if close == "idle":
            connection.timeout_keep_alive_handler()
        elif close == "malformed":
            connection.data_received(b"\x00\r\n\r\n")
        else:
            connection.shutdown()
        assert transport.is_closing()
        await asyncio.wait_for(transport.aborted.wait(), GUARD_S)
        connection.connection_lost(None)

    asyncio.run(body())


@pytest.mark.parametrize("rest", [b"POST /v1/match HTTP/1.1\r\nHost", b"P"])
def test_a_request_that_has_begun_behind_another_has_a_timer(rest: bytes) -> None:
    async def body() -> None:
        connection, _ = await responded(GET + rest)
        assert has_timer(connection)
        connection.connection_lost(None)
        idle, _ = await responded(GET)
        assert not has_timer(idle)  # the keep-alive time holds
        idle.data_received(rest)
        assert has_timer(idle)
        idle.connection_lost(None)

    asyncio.run(body())


def test_addresses_of_an_ipv6_network_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that has 2^64 addresses would have as many connections as it likes."""
    monkeypatch.setattr(BoundedProtocol, "limits", ConnectionLimits(per_address=2))

    async def body() -> None:
        config = uvicorn.Config(app, log_config=None, lifespan="off")

        def connected(address: str) -> tuple[BoundedProtocol, Transport]:
            connection, transport = BoundedProtocol(config, ServerState(), {}), Transport(address)
            connection.connection_made(transport)
            return connection, transport

        near = [connected(f"2001:db8::{number}") for number in range(4)]
        assert [transport.is_closed for _, transport in near] == [False, False, True, True]
        _, far = connected("2001:db8:0:1::1")
        assert not far.is_closed
        for connection, _ in near:
            connection.connection_lost(None)
        assert BoundedProtocol._open == {"2001:db8:0:1::/64": 1}
        assert not connected("2001:db8::9")[1].is_closed

    asyncio.run(body())


def test_a_connection_that_is_accepted_during_a_shutdown_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uvicorn does not know it when it closes the others: half a request would delay the end."""
    monkeypatch.setattr(BoundedProtocol, "is_shutting_down", True)

    async def body() -> None:
        config = uvicorn.Config(app, log_config=None, lifespan="off")
        config.load()
        connection = BoundedProtocol(config, ServerState(), {})
        transport = Transport()
        connection.connection_made(transport)
        assert transport.aborted.is_set()
        assert not has_timer(connection)

    asyncio.run(body())
