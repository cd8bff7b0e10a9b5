"""From the event loop to threads and back, keeping a place until its thread is done with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from matchserve.engine.admission import Place
from matchserve.engine.deadline import Deadline
from matchserve.errors import DeadlineExceeded

T = TypeVar("T")

# A stage notices the deadline itself and says so better; this is for one that does not look up.
GRACE_S = 0.5


async def run_in_place(
    executor: ThreadPoolExecutor, place: Place, deadline: Deadline, work: Callable[[], T]
) -> T:
    """Run `work` on a thread; give `place` back when the thread ends, however we left.

    Raises:
        DeadlineExceeded: it did not end in time; it goes on, in its place, until it looks up.
    """
    loop = asyncio.get_running_loop()
    future = executor.submit(work)

    def ended(_: Future[T]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(place.release)

    future.add_done_callback(ended)
    try:
        timeout_s = deadline.remaining_s() + GRACE_S
        return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)
    except asyncio.CancelledError:
        deadline.depart()
        raise
    except TimeoutError as error:
        deadline.depart()
        raise DeadlineExceeded(
            f"the request took longer than {deadline.seconds:g} s", limit=deadline.seconds
        ) from error
