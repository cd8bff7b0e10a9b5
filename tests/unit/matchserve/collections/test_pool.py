"""Worker processes of collections."""

from __future__ import annotations

import ctypes
import multiprocessing
import resource
import signal
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from matchserve.collections import pool


def faults_of_a_block(number: int) -> int:
    del number
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.full(3_000_000, 1, np.uint8)  # below the size that NumPy asks huge pages for
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_workers_do_not_map_freed_memory_again() -> None:
    """Page faults are a third of the time of describing an image."""
    workers = pool.WorkerPool(2)
    try:
        faults = [found for _, found in workers.run(faults_of_a_block, [(n,) for n in range(8)])]
    finally:
        workers.close()
    assert sorted(faults)[:6] < [100] * 6  # each worker maps the block when it is new


def test_signals_wait_while_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that loses its driver before it is ready prints a traceback."""
    blocked: list[set[int]] = []

    class Executor:
        """Starts no process; records which signals would be blocked in it."""

        def __init__(self, workers: int, **options: object) -> None:
            del workers, options

        def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
            blocked.append({int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])})
            done: Future[Any] = Future()
            done.set_result(work(*arguments))
            return done

    monkeypatch.setattr(pool, "ProcessPoolExecutor", Executor)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    results = dict(pool.WorkerPool(2).run(abs, [(-1,), (-2,), (-3,)]))
    assert results == {0: 1, 1: 2, 2: 3}
    assert all(set(pool.STOP_SIGNALS) <= mask for mask in blocked)
    assert len(blocked) == 3
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_kill_workers_kills_the_processes_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = []

    class Child:
        def kill(self) -> None:
            killed.append(self)

    children = [Child(), Child()]
    monkeypatch.setattr(multiprocessing, "active_children", lambda: children)
    pool.kill_workers()
    assert killed == children
