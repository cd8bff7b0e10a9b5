"""Worker processes of collections."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from matchserve.collections import pool


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
