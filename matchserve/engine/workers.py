"""Run work of the event loop on threads, and free its slot when the thread is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import cv2

from matchserve.clock import Deadline
from matchserve.engine.admission import Slot
from matchserve.errors import DeadlineExceeded, ImageTooLarge

T = TypeVar("T")

# Each stage checks the deadline and raises a more precise error. This extra time lets it do so.
GRACE_S = 0.5


def _with_typed_memory_errors(work: Callable[[], T]) -> T:
    """Run `work`; the libraries report a lack of memory in three ways.

    Raises:
        ImageTooLarge: there was not enough memory.
    """
    try:
        return work()
    except MemoryError as error:
        raise ImageTooLarge("the images do not fit in memory") from error
    except (cv2.error, RuntimeError) as error:
        is_memory = getattr(error, "code", 0) == cv2.Error.StsNoMem or "bad_alloc" in str(error)
        if not is_memory:
            raise
        raise ImageTooLarge("the images do not fit in memory") from error


async def run_in_slot(
    executor: ThreadPoolExecutor, slot: Slot, deadline: Deadline, work: Callable[[], T]
) -> T:
    """Run `work` on a thread and free `slot` when the thread ends, also after an error.

    Raises:
        DeadlineExceeded: the work did not end in time; it keeps its slot until it ends.
    """
    loop = asyncio.get_running_loop()
    future = executor.submit(_with_typed_memory_errors, work)

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
