"""The queue of patches: which ones form the next batch, and which job each row belongs to.

This module has no threads and no clock: `engine.batcher` holds the lock. So a test can try every
order of `put`, `take`, `finish` and `fail`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.clock import Deadline, Threads, one_thread
from matchserve.types import UInt8


class Job:
    """The patches of one request and the rows described so far."""

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
        """Number of running batches that hold some of its patches."""

    @property
    def untaken(self) -> int:
        """Number of patches that are in no batch yet."""
        return len(self.patches) - self.taken

    def take(self, count: int) -> Slice:
        """Put the next `count` patches into a batch."""
        part = Slice(self, self.taken, self.taken + count)
        self.taken += count
        self.batches += 1
        return part


@dataclass(frozen=True, slots=True)
class Slice:
    """The patches `start` to `stop` of a job, in one batch."""

    job: Job
    start: int
    stop: int

    @property
    def patches(self) -> UInt8:
        """The patches, (stop - start, 1, S, S)."""
        return self.job.patches[self.start : self.stop]


class PatchQueue:
    """A first-in, first-out queue of jobs, taken in batches that may hold patches of many jobs.

    A job is in at most as many running batches as it may use threads.
    """

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    @property
    def depth(self) -> int:
        """Number of patches that wait."""
        return sum(job.untaken for job in self._jobs)

    @property
    def is_ready(self) -> bool:
        """Whether `take` would return patches."""
        return any(job.batches < job.threads() for job in self._jobs)

    def put(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.append(job)

    def take(self, limit: int) -> list[Slice]:
        """Take up to `limit` patches of the oldest jobs that may use another lane."""
        batch: list[Slice] = []
        room = limit
        for job in list(self._jobs):
            if job.error or job.deadline.is_over:
                self._jobs.remove(job)  # nobody waits for it any more
            elif room and job.batches < (threads := job.threads()):
                # A job that is larger than the rest of this batch gets a batch of its own:
                # otherwise its other patches would wait although a lane is free.
                if batch and job.untaken > room and job.batches + 1 >= threads:
                    continue
                batch.append(job.take(min(room, job.untaken)))
                room -= batch[-1].stop - batch[-1].start
                if not job.untaken:
                    self._jobs.remove(job)
        return batch

    def drain(self) -> list[Slice]:
        """Take all patches that wait, without regard to threads."""
        batch = [job.take(job.untaken) for job in self._jobs]
        self._jobs.clear()
        return batch

    def finish(self, batch: Sequence[Slice], rows: NDArray[Any]) -> None:
        """Store the rows of a batch in its jobs, by position."""
        position = 0
        for part in batch:
            part.job.batches -= 1
            count = part.stop - part.start
            _store(part, rows[position : position + count])
            position += count

    def fail(self, batch: Sequence[Slice], error: Exception) -> None:
        """Store an error in every job of a batch."""
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
