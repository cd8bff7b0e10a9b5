"""Which patches go into the next batch, and whose rows came out of it.

No threads and no time here: `engine.batcher` holds the lock, so that every interleaving of
`put`, `take`, `finish` and `fail` can be tried in a test.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.engine.deadline import Deadline
from matchserve.types import UInt8


class Job:
    """The patches of one request, and its rows as they come back."""

    def __init__(self, patches: UInt8, deadline: Deadline) -> None:
        self.patches = patches
        self.deadline = deadline
        self.rows: NDArray[Any] | None = None
        self.error: Exception | None = None
        self.settled = threading.Event()
        self.queued_at = 0.0
        self.started_at: float | None = None
        self.taken = 0
        self.returned = 0

    @property
    def untaken(self) -> int:
        """Patches that no batch holds yet."""
        return len(self.patches) - self.taken


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
    """First come, first served, in batches that may hold patches of many jobs."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    @property
    def depth(self) -> int:
        """Patches that wait."""
        return sum(job.untaken for job in self._jobs)

    def put(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.append(job)

    def take(self, limit: int) -> list[Slice]:
        """Up to `limit` patches of the oldest jobs that are still wanted."""
        batch: list[Slice] = []
        room = limit
        while room and self._jobs:
            job = self._jobs[0]
            if job.error or job.deadline.is_over:
                self._jobs.popleft()  # its owner is gone or was told already
                continue
            count = min(room, job.untaken)
            batch.append(Slice(job, job.taken, job.taken + count))
            job.taken += count
            room -= count
            if not job.untaken:
                self._jobs.popleft()
        return batch

    def finish(self, batch: Sequence[Slice], rows: NDArray[Any]) -> None:
        """Give each slice of a batch its rows, by position."""
        position = 0
        for part in batch:
            count = part.stop - part.start
            _store(part, rows[position : position + count])
            position += count

    def fail(self, batch: Sequence[Slice], error: Exception) -> None:
        """Give every job of a batch an error; the others never hear of it."""
        for part in batch:
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
