"""Streams of job events to many readers, as server-sent events.

Readers of one job share one query of the table. Events stay in the table: a reader that is slow or
comes back reads them from there, and nothing is kept for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from matchserve.errors import MatchServeError, Overloaded
from matchserve.jobs.table import FINISHED, Event

MAX_READERS = 256
"""Maximum number of open streams in one process."""

MAX_READERS_PER_CLIENT = 32
"""Maximum number of open streams of one client, so that it cannot have them all."""

POLL_S = 0.5
KEEP_ALIVE_S = 10.0
"""Time after which a comment is sent, so that proxies and clients see that the stream is alive."""

_RECENT = 256

ReadEvents = Callable[[str, int], Awaitable[list[Event]]]
"""Returns the events of a job after a number."""


@dataclass(slots=True, eq=False)
class _Topic:
    """The latest events of one job, and how many read them."""

    recent: deque[Event] = field(default_factory=lambda: deque(maxlen=_RECENT))
    readers: int = 0
    polling: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def is_finished(self, after: int) -> bool:
        """Return whether no event will follow number `after`, which is the reader's word."""
        last = self.recent[-1] if self.recent else None
        return last is not None and last.kind in FINISHED and last.seq <= after


class EventFeed:
    """Used on the event loop only."""

    def __init__(self, read: ReadEvents, is_closing: Callable[[], bool]) -> None:
        self._read, self._is_closing = read, is_closing
        self._topics: dict[str, _Topic] = {}
        self._clients: Counter[str] = Counter()

    @property
    def readers(self) -> int:
        """Number of open streams."""
        return self._clients.total()

    def check_room(self, client: str) -> None:
        """Refuse a reader too many.

        Raises:
            Overloaded: there are as many streams as there may be, in all or of this client.
        """
        for count, limit in (
            (self.readers, MAX_READERS),
            (self._clients[client], MAX_READERS_PER_CLIENT),
        ):
            if count >= limit:
                raise Overloaded(
                    "too many event streams are open", limit=limit, value=count + 1, retry_after_s=5
                )

    async def stream(self, job: str, after: int, client: str) -> AsyncIterator[bytes]:
        """Yield the events of a job after number `after`, until it is finished."""
        topic = self._topics.setdefault(job, _Topic())
        topic.readers += 1
        self._clients[client] += 1
        if topic.polling is None:
            topic.polling = asyncio.create_task(self._poll(job, topic))
        try:
            yield b"retry: 2000\n\n"
            while not self._is_closing():
                changed = topic.changed
                events = await self._events_after(job, topic, after)
                for event in events:
                    after = event.seq
                    yield as_text(event)
                    if event.kind in FINISHED:
                        return
                if not events and topic.is_finished(after):
                    return
                if not events and not await _happens(changed, KEEP_ALIVE_S):
                    yield b": alive\n\n"
        finally:
            topic.readers -= 1
            self._clients[client] -= 1
            self._clients += Counter()  # forget clients without a stream
            if not topic.readers:
                topic.polling.cancel()
                self._topics.pop(job, None)

    async def _events_after(self, job: str, topic: _Topic, after: int) -> list[Event]:
        newer = [event for event in topic.recent if event.seq > after]
        if newer and newer[0].seq == after + 1:
            return newer
        return await self._read(job, after)

    async def _poll(self, job: str, topic: _Topic) -> None:
        """Look for new events, and wake up the readers; also when the service shuts down."""
        while True:
            after = topic.recent[-1].seq if topic.recent else 0
            events: list[Event] = []
            with contextlib.suppress(MatchServeError):  # a reader that asks itself reports it
                events = await self._read(job, after)
            topic.recent.extend(events)
            if events or self._is_closing():
                waiting, topic.changed = topic.changed, asyncio.Event()
                waiting.set()
            await asyncio.sleep(POLL_S)


def as_text(event: Event) -> bytes:
    """Return an event as text/event-stream; its data is one line of JSON."""
    return f"id: {event.seq}\nevent: {event.kind}\ndata: {event.data}\n\n".encode()


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
