"""Run work on a thread whose heap suits large buffers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def off_main_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` on another thread when called on the main one, and return its result.

    After each large buffer of the scale space, glibc returns the top of the main thread's heap to
    the system and requests it again for the next one, which doubles the time of detection. Other
    threads have heaps of their own, where this does not happen.
    """
    if threading.current_thread() is not threading.main_thread():
        return work(*args, **kwargs)
    with ThreadPoolExecutor(1, thread_name_prefix="matchserve-detect") as pool:
        return pool.submit(work, *args, **kwargs).result()
