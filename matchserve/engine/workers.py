"""Run work of the event loop on threads, and free its slot when the thread is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from matchserve.clock import Deadline
from matchserve.engine.admission import Slot
from matchserve.errors import DeadlineExceeded

T = TypeVar("T")

# Each stage checks the deadline and raises a more precise error. This extra time lets it do so.
GRACE_S = 0.5


async def run_in_slot(
    executor: ThreadPoolExecutor, slot: Slot, deadline: Deadline, work: Callable[[], T]
) -> T:
    """Run `work` on a thread and free `slot` when the thread ends, also after an error.

    Raises:
        DeadlineExceeded: the work did not end in time; it keeps its slot until it ends.
    """
    loop = asyncio.get_running_loop()
    future = executor.submit(work)

    def ended(_: Future[T]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(slot.release)

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
