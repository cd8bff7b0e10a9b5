"""Run shards in worker processes, and survive workers that are killed."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from matchserve.errors import WorkerLost
from matchserve.libraries import import_faiss, use_one_opencv_thread
from matchserve.memory import share_heaps

T = TypeVar("T")
Task = tuple[Any, ...]
"""The arguments of one call of the worker function."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that stop a run."""

MAX_LOSSES = 3
"""Number of times in a row that workers may be killed before the run gives up."""


class Pool(Protocol):
    """Runs tasks somewhere; results do not depend on where."""

    def run(self, work: Callable[..., T], tasks: Sequence[Task]) -> Iterator[tuple[int, T]]:
        """Yield the number of each task and its result, in the order in which they finish."""
        ...

    def close(self) -> None:
        """Start no more tasks."""
        ...


class WorkerPool:
    """A number of worker processes, started when they are first needed.

    With one worker, tasks run in this process.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def run(self, work: Callable[..., T], tasks: Sequence[Task]) -> Iterator[tuple[int, T]]:
        """Yield the number of each task and its result, in the order in which they finish.

        `work` must be a function of a module. Tasks of a killed worker run again.

        Raises:
            WorkerLost: workers were killed again and again.
        """
        if self.workers == 1 or len(tasks) <= 1:
            for number, task in enumerate(tasks):
                yield number, work(*task)
            return
        waiting = deque(range(len(tasks)))
        running: dict[Future[T], int] = {}
        losses = 0
        while waiting or running:
            try:
                for number, result in self._run(work, tasks, waiting, running):
                    losses = 0
                    yield number, result
            except BrokenProcessPool as error:
                losses += 1
                self.close()
                if losses > MAX_LOSSES:
                    raise WorkerLost(
                        "worker processes were killed again and again, perhaps for lack of "
                        "memory; run the same command with fewer --workers"
                    ) from error
                waiting.extendleft(sorted(running.values(), reverse=True))
                running.clear()

    def close(self) -> None:
        """End the workers after the tasks that they are running."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _run(
        self,
        work: Callable[..., T],
        tasks: Sequence[Task],
        waiting: deque[int],
        running: dict[Future[T], int],
    ) -> Iterator[tuple[int, T]]:
        """Run the waiting tasks until all are done; `running` are those without a result."""
        pool = self._started()
        while waiting or running:
            # One task waits for each worker, so that none is idle and few are lost.
            while waiting and len(running) < 2 * self.workers:
                number = waiting[0]
                task = tasks[number]
                with _signals_delayed():  # the first tasks start the workers
                    running[pool.submit(work, *task)] = number
                waiting.popleft()
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()
                yield running.pop(future), result

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # FAISS and ONNX Runtime hang after a fork.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                self.workers, mp_context=context, initializer=start_worker
            )
        return self._pool


def kill_workers() -> None:
    """Kill the worker processes of this process; for a handler of `STOP_SIGNALS`.

    Every write is complete or absent, so nothing can be left half done.
    """
    for process in multiprocessing.active_children():
        process.kill()


@contextmanager
def _signals_delayed() -> Iterator[None]:
    """Let signals that stop the run wait, for this process and for those that it starts.

    A worker that loses its driver, or is interrupted, before it is ready prints a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_worker() -> None:
    """Prepare a worker process.

    It uses one thread and one heap, leaves Ctrl-C to the driver, and ends when the driver is gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    os.environ["OMP_NUM_THREADS"] = "1"
    share_heaps(1)
    use_one_opencv_thread()
    import_faiss().omp_set_num_threads(1)
    threading.Thread(target=_end_with_parent, name="matchserve-parent", daemon=True).start()


def _end_with_parent() -> None:
    """Wait until the parent process ends, and end this one at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
