"""Run work in several processes, with a progress bar on terminals."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import cv2
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from matchserve.hardware import available_cpus
from matchserve.libraries import import_faiss
from training.errors import DataError
from training.runtime.progress_lines import ProgressLines

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(
    work: Callable[[Item], Result], items: Sequence[Item], *, workers: int | None, label: str
) -> Iterator[Result]:
    """Yield `work(item)` in the order of `items`, from `workers` processes of one thread each.

    `work` must be a module-level function and the items plain data, since they are sent to other
    processes.

    Raises:
        DataError: a worker process was killed.
    """
    count = min(workers or available_cpus(), max(1, len(items)))
    if count == 1:
        yield from progress(map(work, items), total=len(items), label=label)
        return
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(count, mp_context=context, initializer=one_thread) as pool:
            yield from progress(pool.map(work, items), total=len(items), label=label)
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process was killed, perhaps for lack of memory; "
            "run the command again with fewer --workers"
        ) from error


def progress(items: Iterable[Result], *, total: int, label: str) -> Iterator[Result]:
    """Yield `items`, with a progress bar on standard error, or a line a minute if it is piped."""
    if not sys.stderr.isatty():
        lines = ProgressLines(label, total)
        for done, item in enumerate(items, start=1):
            yield item
            lines.advance(done)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(label, total=total)
        for item in items:
            yield item
            bar.advance(task)


def one_thread() -> None:
    """Limit this process to one thread, since other workers use the other cores."""
    os.environ["OMP_NUM_THREADS"] = "1"
    cv2.setNumThreads(1)
    import_faiss().omp_set_num_threads(1)
