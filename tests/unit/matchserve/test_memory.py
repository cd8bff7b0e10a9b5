"""Freed memory goes back to the system when nobody asks for anything."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from matchserve.api import app as application
from matchserve.memory import return_freed
from tests.in_process import served

BLOCK = 100_000  # below the size from which the C library maps every block by itself
BLOCKS = 500


def hold_and_free() -> int:
    """Free 50 MB below a block that is kept, so that the heap cannot shrink by itself."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(BLOCK) for _ in range(BLOCKS)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    libc.malloc(BLOCK)
    for block in blocks:
        libc.free(block)
    return int(psutil.Process(os.getpid()).memory_info().rss)


def fallen_by(before: int) -> int:
    return before - int(psutil.Process(os.getpid()).memory_info().rss)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_freed_memory_is_returned() -> None:
    before = hold_and_free()
    return_freed()
    assert fallen_by(before) > 0.8 * BLOCK * BLOCKS


AGAIN_AND_AGAIN = """
import resource, sys
import numpy as np
from matchserve.memory import keep_freed
if sys.argv[1] == "kept":
    keep_freed()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.full(100_000_000, 1, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def faults_of_a_block_asked_for_again(heap: str) -> int:
    command = [sys.executable, "-c", AGAIN_AND_AGAIN, heap]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(ran.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_kept_memory_is_not_mapped_again() -> None:
    assert faults_of_a_block_asked_for_again("kept") < 10
    assert faults_of_a_block_asked_for_again("mapped") > 40


def test_an_idle_service_returns_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    monkeypatch.setattr(application, "IDLE_S", 0.3)
    monkeypatch.setattr(application, "return_freed", lambda: calls.append(time.monotonic()))
    with served() as (client, _):
        time.sleep(0.8)
        assert calls == []
        patch = np.zeros(32 * 32, np.uint8).tobytes()
        headers = {"Content-Type": "application/octet-stream"}
        answer = client.post("/v1/patches?model=sift", content=patch, headers=headers)
        assert answer.status_code == 200
        end = time.monotonic() + 10
        while not calls and time.monotonic() < end:
            time.sleep(0.05)
    assert len(calls) == 1
