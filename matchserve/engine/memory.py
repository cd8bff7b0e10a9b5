"""What the C library keeps of memory that was freed: shared between threads, returned when idle.

Finding keypoints takes 240 bytes a pixel for a moment. The library keeps such a heap for every
thread that ever had one, for ever; returning each block at once instead costs a quarter of the
speed in page faults. Of the heap that the process began with it returns what is free at the top
again and again by itself, so threads that share that heap find keypoints at 0.6 of the speed.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
# The largest the library takes: larger blocks are mapped and returned one by one.
_HEAP_BLOCK_BYTES = 32 << 20
_KEPT_BYTES = (1 << 31) - 1


def share_heaps(count: int) -> None:
    """Let all threads share `count` heaps, which keep what is freed until `return_freed`.

    Nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, count)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _HEAP_BLOCK_BYTES)


def keep_freed() -> None:
    """Let all threads share one heap that returns nothing, blocks of any size among it.

    For a process that asks for the same large blocks again and again, as a training step does:
    mapped anew, each of their pages costs a fault. Nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_TRIM_THRESHOLD, -1)
        mallopt(_M_MMAP_MAX, 0)


def return_freed() -> None:
    """Return freed memory to the system; nothing where the C library is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class IdleWatch:
    """Says once, after work has ended for a while, that the service is idle."""

    def __init__(self, after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._after_s = after_s
        self._clock = clock
        self._worked_at: float | None = None

    def has_become_idle(self, *, is_busy: bool) -> bool:
        """Whether `after_s` have passed since the last time it was busy; true once."""
        if is_busy:
            self._worked_at = self._clock()
        elif self._worked_at is not None and self._clock() - self._worked_at >= self._after_s:
            self._worked_at = None
            return True
        return False
