"""Settings of glibc's heap: how many there are, and when freed memory returns to the system.

Detecting keypoints needs 240 bytes per pixel for a moment. By default glibc keeps such a heap for
every thread that ever needed one, for ever. Returning each block at once costs page faults, a third
of the time of describing an image of a megapixel (docs/research/collections.md). The main heap is
trimmed automatically again and again, so threads that share it detect keypoints at 0.6 of the
speed. Hence: a few shared heaps that keep what is freed, and one explicit trim when the service is
idle. The settings are those of a whole process: our programs and workers make them, the library
does not. All functions do nothing where the C library is not glibc.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
# The largest value glibc accepts: larger blocks are mapped and returned one by one.
_HEAP_BLOCK_BYTES = 32 << 20
_KEPT_BYTES = (1 << 31) - 1


def share_heaps(count: int) -> None:
    """Let all threads share `count` heaps, which keep freed memory until `return_freed`."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, count)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _HEAP_BLOCK_BYTES)


def keep_freed() -> None:
    """Let all threads share one heap that never returns memory, whatever the size of a block.

    For a process that allocates the same large blocks again and again, as a training step does:
    mapping them anew costs a page fault for every page.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_TRIM_THRESHOLD, -1)
        mallopt(_M_MMAP_MAX, 0)


def return_freed() -> None:
    """Return freed memory to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
