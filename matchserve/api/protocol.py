"""uvicorn's HTTP protocol with deadlines and limits for each connection.

uvicorn never closes a connection that is silent, half sent or not read: a few hundred such
sockets cost a client nothing and are all that a server has. uvicorn offers no hook, so this relies
on its attributes: the version is pinned, and `tests/faults/test_slow_sockets.py` and
`tests/security/test_protocol.py` fail if they change.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from matchserve.api.addresses import network_of

# Each piece of a body costs the event loop about 30 us, whatever its size.
FREE_PIECES = 256
"""Number of pieces of a body that may be small."""
MIN_PIECE_BYTES = 512
"""Minimum average size of the pieces of a body, e.g. of its chunks, after the free ones."""
CLOSE_S = 5.0
"""Maximum time to send what is left when a connection is closed."""
HALF_SENT_DRAIN_S = 1.0
"""Maximum time for the rest of a half-sent request when the service shuts down."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of each connection, and of the connections of one address."""

    receive_s: float = 15.0
    send_s: float = 30.0
    per_address: int = 250
    trusted_proxies: tuple[str, ...] = ()

    def is_trusted(self, address: str) -> bool:
        """Return whether an address is that of a proxy, which has many clients."""
        try:
            host = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(host in ipaddress.ip_network(n, strict=False) for n in self.trusted_proxies)


class BoundedConnection(h11.Connection):
    """Refuses requests with two lengths, and bodies that come in tiny pieces."""

    _pieces = 0
    _received = 0

    def next_event(self) -> Any:
        """Return the next event.

        Raises:
            h11.RemoteProtocolError: the request is not valid or not allowed.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._received = 0
            _refuse_two_lengths(event)
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._received += len(event.data)
            if self._pieces > FREE_PIECES + self._received / MIN_PIECE_BYTES:
                raise h11.RemoteProtocolError("the body comes in pieces that are too small")
        return event


def _refuse_two_lengths(request: h11.Request) -> None:
    """Refuse what a proxy in front may read as another request than we do."""
    names = {name.lower() for name, _ in request.headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        raise h11.RemoteProtocolError("a request has a length or is chunked, not both")


class BoundedProtocol(H11Protocol):
    """Closes a connection whose request is not complete, or whose response is not read, in time."""

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()
    is_shutting_down: ClassVar[bool] = False
    """Whether the connections are being closed: uvicorn forgets those that it accepts meanwhile."""
    _open: ClassVar[Counter[str]] = Counter()

    _receive_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None
    _address: str = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        size = self.config.h11_max_incomplete_event_size
        self.conn = BoundedConnection(h11.SERVER, *([] if size is None else [size]))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the receive timer: a silent connection is a request that is not complete."""
        super().connection_made(transport)
        host = self.client[0] if self.client else ""
        if host and not self.limits.is_trusted(host):
            self._address = network_of(host)
            self._open[self._address] += 1
            if self._open[self._address] > self.limits.per_address:
                transport.abort()
                return
        if BoundedProtocol.is_shutting_down:
            transport.abort()
            return
        self._arm_receive(self.limits.receive_s)

    def data_received(self, data: bytes) -> None:
        """Parse bytes; the receive timer runs from a request's first byte to its last."""
        super().data_received(data)
        self._update_receive_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        if self._address:
            self._open[self._address] -= 1
            if not self._open[self._address]:
                del self._open[self._address]
        self._disarm_receive()
        self._disarm_send()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Watch that the client reads the response, and start on a request that followed it."""
        if self.conn.their_state is h11.DONE:
            # Between requests the shorter keep-alive time holds.
            self._disarm_receive()
        super().on_response_complete()
        self._update_receive_timer()
        # A response below the high-water mark never pauses the transport.
        if self.transport.get_write_buffer_size() and self._send_timer is None:
            self._send_timer = self._later(self.limits.send_s, self._abort_if_unsent)

    def pause_writing(self) -> None:
        """Start the send timer: the client does not read."""
        super().pause_writing()
        self._disarm_send()
        self._send_timer = self._later(self.limits.send_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the send timer: the client reads again."""
        self._disarm_send()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not valid; if a response has begun, close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
            self._close_in_time()
        else:
            self.transport.abort()
        self._end_cycle()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()
        self._close_in_time()

    def shutdown(self) -> None:
        """Close an idle connection; a request that is not complete has little time left."""
        super().shutdown()
        if self.transport.is_closing():
            self._close_in_time()
        elif self.conn.their_state is h11.SEND_BODY:
            self._disarm_receive()
            self._arm_receive(min(HALF_SENT_DRAIN_S, self.limits.receive_s))

    def _update_receive_timer(self) -> None:
        state = self.conn.their_state
        if state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR):
            self._disarm_receive()
            return
        # A request that followed another one has begun without a call of `data_received`.
        has_begun = state is h11.SEND_BODY or bool(self.conn.trailing_data[0])
        if has_begun and self._receive_timer is None and not self.transport.is_closing():
            self._arm_receive(self.limits.receive_s)

    def _abort_if_unsent(self) -> None:
        self._send_timer = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def _close_in_time(self) -> None:
        """Abort a closing connection whose client does not read the rest."""
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._disarm_send()
            self._send_timer = self._later(CLOSE_S, self.transport.abort)

    def _end_cycle(self) -> None:
        """Tell the application that the client is gone.

        It has been started on the request's head: without this it would send a second response
        before uvicorn reports that the connection is closed.
        """
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _later(self, seconds: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, action)

    def _arm_receive(self, seconds: float) -> None:
        self._receive_timer = self._later(seconds, self.transport.abort)

    def _disarm_receive(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _disarm_send(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None


def set_limits(limits: ConnectionLimits) -> None:
    """Set the limits of this process; uvicorn creates the instances and passes nothing on."""
    BoundedProtocol.limits = limits
