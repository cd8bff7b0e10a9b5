"""Streams of job events: they end, and no client has them all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from matchserve.api.events import MAX_READERS, MAX_READERS_PER_CLIENT, EventFeed
from matchserve.errors import Overloaded, StorageDamaged
from matchserve.jobs.table import Event

QUEUED = Event(1, "queued", "{}")
FINISHED = [QUEUED, Event(2, "running", "{}"), Event(3, "succeeded", "{}")]


def feed_of(events: list[Event], failures: int = 0) -> EventFeed:
    left = [failures]

    async def read(_: str, after: int) -> list[Event]:
        if left[0]:
            left[0] -= 1
            raise StorageDamaged("busy")
        return [event for event in events if event.seq > after]

    return EventFeed(read, lambda: False)


async def text_of(stream: AsyncIterator[bytes]) -> str:
    return b"".join([part async for part in stream]).decode()


@pytest.mark.parametrize("last", [3, 4, 2**53])
def test_the_stream_of_a_finished_job_ends_whatever_the_client_has_seen(last: int) -> None:
    async def body() -> str:
        stream = feed_of(FINISHED).stream("job", last, "me")
        return await asyncio.wait_for(text_of(stream), 60)

    assert asyncio.run(body()) == "retry: 2000\n\n"


def test_a_stream_ends_with_the_last_event() -> None:
    async def body() -> str:
        return await asyncio.wait_for(text_of(feed_of(FINISHED).stream("job", 1, "me")), 60)

    assert [line for line in asyncio.run(body()).splitlines() if line.startswith("id")] == [
        "id: 2",
        "id: 3",
    ]


def test_a_client_cannot_have_all_streams() -> None:
    async def body() -> None:
        feed = feed_of([QUEUED])
        streams = []

        async def open_one(client: str) -> None:
            feed.check_room(client)
            streams.append(feed.stream("job", 0, client))
            await anext(streams[-1])

        for _ in range(MAX_READERS_PER_CLIENT):
            await open_one("greedy")
        with pytest.raises(Overloaded) as refused:
            await open_one("greedy")
        assert refused.value.limit == MAX_READERS_PER_CLIENT
        number = 0
        while feed.readers < MAX_READERS:
            await open_one(f"other {number}")
            number += 1
        with pytest.raises(Overloaded):
            await open_one("late")
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        assert feed.readers == 0
        await open_one("greedy")
        await streams[-1].aclose()  # type: ignore[attr-defined]

    asyncio.run(body())


def test_a_failing_database_does_not_stop_the_search_for_events() -> None:
    async def body() -> str:
        feed = feed_of(FINISHED, failures=1)
        topic = feed.stream("job", 3, "me")
        feed._events_after = no_events  # type: ignore[method-assign, assignment]
        return await asyncio.wait_for(text_of(topic), 60)

    async def no_events(*_: object) -> list[Event]:
        return []

    assert asyncio.run(body()).startswith("retry")
