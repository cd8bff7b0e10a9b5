"""Which patches go into the next batch, and whose rows came out of it.

No threads and no time here: `engine.batcher` holds the lock, so that every interleaving of
`put`, `take`, `finish` and `fail` can be tried in a test.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.engine.deadline import Deadline
from matchserve.types import UInt8

Threads = Callable[[], int]
"""How many threads a request may keep busy now: asked again and again, as others come and go."""


def one_thread() -> int:
    """A request that keeps to one core."""
    return 1


class Job:
    """The patches of one request, and its rows as they come back."""

    def __init__(self, patches: UInt8, deadline: Deadline, threads: Threads = one_thread) -> None:
        self.patches = patches
        self.deadline = deadline
        self.threads = threads
        self.rows: NDArray[Any] | None = None
        self.error: Exception | None = None
        self.settled = threading.Event()
        self.queued_at = 0.0
        self.started_at: float | None = None
        self.taken = 0
        self.returned = 0
        self.batches = 0
        """Batches under way that hold some of its patches: that many lanes work for it."""

    @property
    def untaken(self) -> int:
        """Patches that no batch holds yet."""
        return len(self.patches) - self.taken

    def take(self, count: int) -> Slice:
        """The next `count` patches."""
        part = Slice(self, self.taken, self.taken + count)
        self.taken += count
        self.batches += 1
        return part


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows `start` to `stop` of a job, in one batch."""

    job: Job
    start: int
    stop: int

    @property
    def patches(self) -> UInt8:
        """The patches themselves."""
        return self.job.patches[self.start : self.stop]


class PatchQueue:
    """First come, first served, in batches that may hold patches of many jobs.

    No job is in more batches at once than it may have threads: the thread that waits for a
    one-thread job gives its core to one lane, and not to all of them.
    """

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    @property
    def depth(self) -> int:
        """Patches that wait."""
        return sum(job.untaken for job in self._jobs)

    @property
    def is_ready(self) -> bool:
        """Whether a free lane would find something to do."""
        return any(job.batches < job.threads() for job in self._jobs)

    def put(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.append(job)

    def take(self, limit: int) -> list[Slice]:
        """Up to `limit` patches of the oldest jobs that are still wanted and may have a lane."""
        batch: list[Slice] = []
        room = limit
        for job in list(self._jobs):
            if job.error or job.deadline.is_over:
                self._jobs.remove(job)  # its owner is gone or was told already
            elif room and job.batches < (threads := job.threads()):
                # A job of many batches that only filled up this one would wait for its other
                # patches here, with a lane free beside it.
                if batch and job.untaken > room and job.batches + 1 >= threads:
                    continue
                batch.append(job.take(min(room, job.untaken)))
                room -= batch[-1].stop - batch[-1].start
                if not job.untaken:
                    self._jobs.remove(job)
        return batch

    def drain(self) -> list[Slice]:
        """Everything that waits, whoever may run it."""
        batch = [job.take(job.untaken) for job in self._jobs]
        self._jobs.clear()
        return batch

    def finish(self, batch: Sequence[Slice], rows: NDArray[Any]) -> None:
        """Give each slice of a batch its rows, by position."""
        position = 0
        for part in batch:
            part.job.batches -= 1
            count = part.stop - part.start
            _store(part, rows[position : position + count])
            position += count

    def fail(self, batch: Sequence[Slice], error: Exception) -> None:
        """Give every job of a batch an error; the others never hear of it."""
        for part in batch:
            part.job.batches -= 1
            part.job.error = part.job.error or error
            part.job.settled.set()


def _store(part: Slice, rows: NDArray[Any]) -> None:
    job = part.job
    if job.error:
        return
    if job.rows is None:
        job.rows = np.empty((len(job.patches), rows.shape[1]), rows.dtype)
    job.rows[part.start : part.stop] = rows
    job.returned += len(rows)
    if job.returned == len(job.patches):
        job.settled.set()
