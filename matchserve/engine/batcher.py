"""Run a model on batches that hold patches of many requests.

A lane is one thread that runs the model, single-threaded, on the next batch. The thread of the
request sleeps meanwhile, so each request keeps one core busy. Small requests share batches. A
request that runs alone is split into batches for all lanes, so it uses every core.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.clock import Clock, Deadline, Threads, one_thread
from matchserve.engine.patch_queue import Job, PatchQueue, Slice
from matchserve.errors import DeadlineExceeded, InferenceFailed, MatchServeError, ShuttingDown
from matchserve.models.execution import CPU_BATCH
from matchserve.types import UInt8

Describe = Callable[[UInt8], NDArray[Any]]

MAX_FAILURES, FAILURE_WINDOW_S = 3, 30.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Number of lanes, largest batch, and seconds after which a lane counts as stuck."""

    lanes: int = 2
    max_patches: int = CPU_BATCH
    stuck_s: float = 20.0


class _Lane:
    """The state of one worker thread; results of a stale lane are discarded."""

    def __init__(self) -> None:
        self.batch: Sequence[Slice] = ()
        self.busy_since: float | None = None
        self.is_stale = False


class Batcher:
    """Describes the patches of many callers in batches, on a few threads."""

    def __init__(
        self,
        make: Callable[[], Describe],
        policy: BatchPolicy | None = None,
        *,
        clock: Clock = time.monotonic,
        on_batch: Callable[[int, int], None] = lambda _patches, _jobs: None,
    ) -> None:
        """Start the lanes; `make` opens the model, now and after repeated failures."""
        self.policy = policy or BatchPolicy()
        self._make = make
        self._describe = make()
        self._clock = clock
        self._on_batch = on_batch
        self._queue = PatchQueue()
        self._changed = threading.Condition()
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)
        self._is_closed = False
        self.rebuilds = 0
        self._lanes: list[_Lane] = []
        for _ in range(self.policy.lanes):
            self._start_lane()

    @property
    def depth(self) -> int:
        """Number of patches that wait for a lane."""
        with self._changed:
            return self._queue.depth

    def submit(
        self, patches: UInt8, deadline: Deadline, threads: Threads = one_thread
    ) -> NDArray[Any]:
        """Describe (N, 1, S, S) patches, N at least 1, and wait for the rows.

        Raises:
            InferenceFailed: the model failed on a batch that held some of these patches.
            DeadlineExceeded: the rows were not ready in time.
            ClientDeparted: the client closed the connection.
            ShuttingDown: the batcher was closed.
        """
        return self.wait(self.enqueue(patches, deadline, threads))

    def enqueue(self, patches: UInt8, deadline: Deadline, threads: Threads = one_thread) -> Job:
        """Queue patches; `wait` returns their rows."""
        deadline.check()
        job = Job(patches, deadline, threads)
        job.queued_at = self._clock()
        with self._changed:
            if self._is_closed:
                raise ShuttingDown("the service is shutting down")
            self._queue.put(job)
            self._changed.notify()
        return job

    def wait(self, job: Job) -> NDArray[Any]:
        """Return the rows of a queued job, or raise its error."""
        while not job.settled.wait(min(0.25, job.deadline.remaining_s())):
            if job.deadline.is_over:
                self._replace_stuck_lanes()
                job.deadline.check()
                raise DeadlineExceeded("the model did not return in time")
        if job.error:
            raise job.error
        if job.rows is None:
            raise InferenceFailed("the model returned no rows")
        return job.rows

    def close(self) -> None:
        """Stop the lanes; jobs that still wait fail with `ShuttingDown`."""
        with self._changed:
            self._is_closed = True
            self._queue.fail(self._queue.drain(), ShuttingDown("the service is shutting down"))
            self._changed.notify_all()

    def _start_lane(self) -> None:
        lane = _Lane()
        self._lanes.append(lane)
        threading.Thread(
            target=self._work, args=(lane,), name="matchserve-lane", daemon=True
        ).start()

    def _work(self, lane: _Lane) -> None:
        while batch := self._next_batch(lane):
            try:
                patches = np.concatenate([part.patches for part in batch])
                rows = self._describe(patches)
                if len(rows) != len(patches):
                    raise InferenceFailed("the model did not return one row for each patch")
            except MatchServeError as error:
                self._settle(lane, error=error)
            except Exception as error:  # noqa: BLE001  a lane must survive any error of a model
                _log.exception("a model raised an error")
                failure = InferenceFailed("the model failed while running")
                failure.__cause__ = error
                self._settle(lane, error=failure)
            else:
                self._settle(lane, rows=rows)

    def _next_batch(self, lane: _Lane) -> Sequence[Slice]:
        """Wait for the next batch; return an empty one when the lane must end."""
        with self._changed:
            while not lane.is_stale and not self._is_closed:
                lane.batch = self._queue.take(self.policy.max_patches)
                if lane.batch:
                    if self._queue.is_ready:
                        self._changed.notify()  # wake the next lane while work is left
                    self._note_start(lane)
                    return lane.batch
                self._changed.wait()
        return ()

    def _note_start(self, lane: _Lane) -> None:
        now = lane.busy_since = self._clock()
        for part in lane.batch:
            part.job.started_at = part.job.started_at or now
        self._on_batch(sum(part.stop - part.start for part in lane.batch), len(lane.batch))

    def _settle(
        self, lane: _Lane, *, rows: NDArray[Any] | None = None, error: Exception | None = None
    ) -> None:
        with self._changed:
            if not lane.is_stale:
                if error:
                    self._queue.fail(lane.batch, error)
                elif rows is not None:
                    self._queue.finish(lane.batch, rows)
            lane.batch, lane.busy_since = (), None
        if isinstance(error, InferenceFailed):
            self._count_failure()

    def _count_failure(self) -> None:
        """Open the model again after three failures within half a minute."""
        now = self._clock()
        with self._changed:
            self._failures.append(now)
            is_due = (
                len(self._failures) == MAX_FAILURES and now - self._failures[0] <= FAILURE_WINDOW_S
            )
            if is_due:
                self._failures.clear()
        if is_due:
            self._rebuild()

    def _rebuild(self) -> None:
        try:
            self._describe = self._make()
        except MatchServeError:
            _log.exception("the model could not be opened again")
        else:
            self.rebuilds += 1
            _log.warning("the model was opened again after repeated failures")

    def _replace_stuck_lanes(self) -> None:
        """Replace lanes whose model call does not return, so that other requests are served."""
        with self._changed:
            for lane in [lane for lane in self._lanes if self._is_stuck(lane)]:
                _log.error("a model call did not return for %g s; its lane is replaced",
                           self.policy.stuck_s)  # fmt: skip
                lane.is_stale = True
                self._lanes.remove(lane)
                self._queue.fail(lane.batch, InferenceFailed("the model did not return"))
                self._start_lane()

    def _is_stuck(self, lane: _Lane) -> bool:
        return (
            lane.busy_since is not None and self._clock() - lane.busy_since >= self.policy.stuck_s
        )
