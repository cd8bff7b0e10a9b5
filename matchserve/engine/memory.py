"""What the C library keeps of memory that was freed: shared between threads, returned when idle.

Finding keypoints takes 240 bytes a pixel for a moment. The library keeps such a heap for every
thread that ever had one, for ever; returning each block at once instead costs a quarter of the
speed in page faults.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

_M_ARENA_MAX = -8


def share_heaps(count: int) -> None:
    """Let all threads share `count` heaps; nothing where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, count)


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
