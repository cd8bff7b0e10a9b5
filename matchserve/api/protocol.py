"""uvicorn's HTTP protocol with deadlines for receiving a request and for sending an answer.

uvicorn never closes a connection that is silent, half sent or not read: a few hundred such
sockets are free for a client and are all a server has. It offers no hook, so this leans on its
attributes: the version is pinned and `tests/faults/test_slow_sockets.py` watches.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class DeadlineProtocol(H11Protocol):
    """Closes a connection whose request is not complete, or whose answer is not read, in time."""

    receive_s: ClassVar[float] = 15.0
    send_s: ClassVar[float] = 30.0

    _receive_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock: a silent connection is a request that is not complete."""
        super().connection_made(transport)
        self._arm_receive()

    def data_received(self, data: bytes) -> None:
        """Take bytes; the clock runs from a request's first byte to its last."""
        super().data_received(data)
        if self.conn.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR):
            self._disarm_receive()
        elif self._receive_timer is None:
            self._arm_receive()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        self._disarm_receive()
        self._disarm_send()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Between requests the shorter keep-alive time holds, not ours."""
        if self.conn.their_state is h11.DONE:
            self._disarm_receive()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read: start the clock of sending."""
        super().pause_writing()
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(self.send_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._disarm_send()
        super().resume_writing()

    def _arm_receive(self) -> None:
        self._receive_timer = self.loop.call_later(self.receive_s, self.transport.abort)

    def _disarm_receive(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _disarm_send(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None


def set_deadlines(receive_s: float, send_s: float) -> None:
    """Set the times of this process; uvicorn makes the instances and passes nothing on."""
    DeadlineProtocol.receive_s = receive_s
    DeadlineProtocol.send_s = send_s
