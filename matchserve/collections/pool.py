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
from typing import Any, TypeVar

from matchserve.errors import WorkerLost
from matchserve.libraries import import_faiss, use_one_opencv_thread

T = TypeVar("T")
Task = tuple[Any, ...]
"""The arguments of one call of the worker function."""

MAX_LOSSES = 3
"""Number of times in a row that workers may be killed before the run gives up."""


def run_tasks(
    work: Callable[..., T], tasks: Sequence[Task], workers: int
) -> Iterator[tuple[int, T]]:
    """Yield the number of each task and its result, in the order in which they finish.

    With one worker the tasks run in this process. `work` must be a function of a module. Tasks of
    a killed worker run again.

    Raises:
        WorkerLost: workers were killed again and again.
    """
    if workers == 1 or len(tasks) <= 1:
        for number, task in enumerate(tasks):
            yield number, work(*task)
        return
    waiting = deque(range(len(tasks)))
    losses = 0
    while waiting:
        running: dict[Future[T], int] = {}
        try:
            for number, result in _run_pool(work, tasks, waiting, running, workers):
                losses = 0
                yield number, result
        except BrokenProcessPool as error:
            losses += 1
            if losses > MAX_LOSSES:
                raise WorkerLost(
                    "worker processes were killed again and again, perhaps for lack of memory; "
                    "run the same command with fewer --workers"
                ) from error
            waiting.extendleft(sorted(running.values(), reverse=True))


def _run_pool(
    work: Callable[..., T],
    tasks: Sequence[Task],
    waiting: deque[int],
    running: dict[Future[T], int],
    workers: int,
) -> Iterator[tuple[int, T]]:
    """Run the waiting tasks until all are done; `running` are those whose result is not known."""
    # FAISS and ONNX Runtime hang after a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    try:
        while waiting or running:
            # One task waits for each worker, so that none is idle and few are lost.
            while waiting and len(running) < 2 * workers:
                number = waiting.popleft()
                running[pool.submit(work, *tasks[number])] = number
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()
                yield running.pop(future), result
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _start_worker() -> None:
    """Use one thread, leave Ctrl-C to the driver, and end when the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"
    use_one_opencv_thread()
    import_faiss().omp_set_num_threads(1)
    threading.Thread(target=_end_with_parent, name="matchserve-parent", daemon=True).start()


def _end_with_parent() -> None:
    """Wait until the parent process ends, and end this one at once.

    Every write is complete or absent, so nothing can be left half done.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
