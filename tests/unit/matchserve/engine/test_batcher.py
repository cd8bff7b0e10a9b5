"""Batches mix the patches of many requests and never their rows."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matchserve.clock import ClientDeparted, Deadline
from matchserve.engine.batcher import Batcher, BatchPolicy
from matchserve.engine.patch_queue import Job, PatchQueue, Slice
from matchserve.errors import DeadlineExceeded, InferenceFailed, ShuttingDown
from matchserve.types import Float32, UInt8

PROJECTION = np.random.default_rng(5).normal(size=(64, 16)).astype(np.float32)


def describe(patches: UInt8) -> Float32:
    """A stand-in model: every row depends on its own patch, through real arithmetic."""
    rows = patches.reshape(len(patches), -1).astype(np.float32) @ PROJECTION
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def patches_of(owner: int, count: int) -> UInt8:
    """Patches that no other owner has."""
    return np.random.default_rng(owner).integers(1, 255, (count, 1, 8, 8), np.uint8)


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "take", "finish", "fail", "depart"]), st.integers(0, 40)),
    min_size=5,
    max_size=60,
)


class Interleaving:
    """Drives a queue through arbitrary steps, with any number of batches under way."""

    def __init__(self, batch_limit: int, threads: int) -> None:
        self.queue = PatchQueue()
        self.limit = batch_limit
        self.threads = threads
        self.jobs: list[Job] = []
        self.under_way: list[list[Slice]] = []
        self.failed: set[int] = set()

    def step(self, action: str, number: int) -> None:
        if action == "put":
            job = Job(patches_of(len(self.jobs), 1 + number), Deadline(1e6), lambda: self.threads)
            self.jobs.append(job)
            self.queue.put(job)
        elif action == "take":
            if batch := self.queue.take(self.limit):
                self.under_way.append(batch)
            for job in self.jobs:
                working = sum(part.job is job for batch in self.under_way for part in batch)
                assert job.batches == working <= self.threads
        elif action == "depart" and self.jobs:
            self.jobs[number % len(self.jobs)].deadline.depart()
        elif self.under_way:
            batch = self.under_way.pop(number % len(self.under_way))
            if action == "fail":
                self.failed |= {id(part.job) for part in batch}
                self.queue.fail(batch, InferenceFailed("told to"))
            else:
                self.finish(batch)

    def finish(self, batch: list[Slice]) -> None:
        self.queue.finish(batch, describe(np.concatenate([part.patches for part in batch])))

    def drain(self) -> None:
        while self.under_way:
            self.finish(self.under_way.pop())
        while batch := self.queue.take(self.limit):
            assert sum(part.stop - part.start for part in batch) <= self.limit
            self.finish(batch)


@settings(max_examples=2000, deadline=None, derandomize=True)
def assert_described(job: Job) -> None:
    assert job.rows is not None
    np.testing.assert_allclose(job.rows, describe(job.patches), atol=1e-6)


@given(steps=STEPS, batch_limit=st.integers(1, 70), threads=st.integers(1, 3))
def test_every_interleaving_gives_every_job_its_own_rows(
    steps: list[Step], batch_limit: int, threads: int
) -> None:
    run = Interleaving(batch_limit, threads)
    for action, number in steps:
        run.step(action, number)
    run.drain()
    assert run.queue.depth == 0
    for job in run.jobs:
        if id(job) in run.failed:
            assert isinstance(job.error, InferenceFailed)
        elif not job.deadline.is_over:
            assert job.settled.is_set()
            assert_described(job)
        if job.settled.is_set() and job.error is None:
            assert_described(job)


def test_departed_jobs_are_not_described() -> None:
    queue = PatchQueue()
    gone, here = (Job(patches_of(i, 10), Deadline(1e6)) for i in range(2))
    queue.put(gone)
    queue.put(here)
    gone.deadline.depart()
    assert [part.job for part in queue.take(64)] == [here]


def test_a_batch_holds_patches_of_several_jobs_up_to_its_limit() -> None:
    queue = PatchQueue()
    jobs = [Job(patches_of(i, 30), Deadline(1e6), lambda: 2) for i in range(3)]
    for job in jobs:
        queue.put(job)
    first, second = queue.take(64), queue.take(64)
    assert [(part.job, part.start, part.stop) for part in first] == [
        (jobs[0], 0, 30),
        (jobs[1], 0, 30),
        (jobs[2], 0, 4),
    ]
    assert [(part.job, part.start, part.stop) for part in second] == [(jobs[2], 4, 30)]


def test_a_one_thread_job_is_not_split_to_fill_a_batch() -> None:
    """Its other patches would wait for that batch while a lane stands idle."""
    queue = PatchQueue()
    small, large = (Job(patches_of(i, count), Deadline(1e6)) for i, count in ((0, 10), (1, 100)))
    queue.put(small)
    queue.put(large)
    assert [(part.job, part.stop) for part in queue.take(64)] == [(small, 10)]
    assert [(part.job, part.stop) for part in queue.take(64)] == [(large, 64)]
    assert queue.take(64) == []


class Meeting:
    """A model that says how many lanes were in it at once, as far as `expected`."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.most = 0
        self._inside = 0
        self._changed = threading.Condition()

    def describe(self, patches: UInt8) -> Float32:
        with self._changed:
            self._inside += 1
            self.most = max(self.most, self._inside)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self.expected, timeout=0.2)
            self._inside -= 1
        return describe(patches)


def test_a_one_thread_job_keeps_one_lane_busy() -> None:
    meeting = Meeting(expected=2)
    batcher = Batcher(lambda: meeting.describe, BatchPolicy(lanes=3, max_patches=8))
    patches = patches_of(1, 32)
    np.testing.assert_allclose(batcher.submit(patches, Deadline(30)), describe(patches), atol=1e-6)
    assert meeting.most == 1
    batcher.close()


def test_a_job_has_as_many_lanes_as_it_may_have_threads() -> None:
    meeting = Meeting(expected=2)
    batcher = Batcher(lambda: meeting.describe, BatchPolicy(lanes=3, max_patches=8))
    batcher.submit(patches_of(1, 64), Deadline(30), lambda: 2)
    assert meeting.most == 2
    batcher.close()


def test_one_thread_jobs_of_two_requests_run_side_by_side() -> None:
    meeting = Meeting(expected=2)
    batcher = Batcher(lambda: meeting.describe, BatchPolicy(lanes=2, max_patches=8))
    jobs = [batcher.enqueue(patches_of(owner, 32), Deadline(30)) for owner in range(2)]
    for job in jobs:
        np.testing.assert_allclose(batcher.wait(job), describe(job.patches), atol=1e-6)
    assert meeting.most == 2
    batcher.close()


def test_a_job_gets_the_lanes_of_a_request_that_has_ended() -> None:
    threads = [1]
    meeting = Meeting(expected=2)

    def watched(patches: UInt8) -> Float32:
        threads[0] = 2  # from the first batch on, whoever else ran is gone
        return meeting.describe(patches)

    batcher = Batcher(lambda: watched, BatchPolicy(lanes=2, max_patches=8))
    batcher.submit(patches_of(1, 64), Deadline(30), lambda: threads[0])
    assert meeting.most == 2
    batcher.close()


def test_threads_get_their_own_rows_while_others_hang_up() -> None:
    sizes: list[tuple[int, int]] = []
    batcher = Batcher(
        lambda: describe, BatchPolicy(lanes=2), on_batch=lambda p, j: sizes.append((p, j))
    )
    wrong: list[int] = []
    answered: list[int] = []

    def ask(owner: int) -> None:
        deadline = Deadline(30)
        patches = patches_of(owner, 1 + owner % 90)
        job = batcher.enqueue(patches, deadline)
        if owner % 3 == 0:
            deadline.depart()
        try:
            rows = batcher.wait(job)
        except ClientDeparted:
            return
        answered.append(owner)
        if not np.allclose(rows, describe(patches), atol=1e-6):
            wrong.append(owner)

    threads = [threading.Thread(target=ask, args=(owner,)) for owner in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batcher.close()
    assert not wrong
    assert set(answered) >= {owner for owner in range(200) if owner % 3}
    assert max(patches for patches, _ in sizes) <= 64


def test_a_failing_batch_fails_its_own_jobs_only() -> None:
    def describe_or_fail(patches: UInt8) -> Float32:
        if (patches == 255).all(axis=(1, 2, 3)).any():
            raise RuntimeError("a private exception of the runtime")
        return describe(patches)

    batcher = Batcher(lambda: describe_or_fail, BatchPolicy(lanes=1, max_patches=8))
    good = patches_of(1, 8)
    np.testing.assert_allclose(batcher.submit(good, Deadline(5)), describe(good), atol=1e-6)
    with pytest.raises(InferenceFailed):
        batcher.submit(np.full((8, 1, 8, 8), 255, np.uint8), Deadline(5))
    np.testing.assert_allclose(batcher.submit(good, Deadline(5)), describe(good), atol=1e-6)
    batcher.close()


def test_three_failures_within_half_a_minute_open_the_model_anew() -> None:
    opened: list[int] = []
    now = [0.0]

    def make() -> object:
        opened.append(1)
        return fail if len(opened) == 1 else describe

    def fail(patches: UInt8) -> Float32:
        raise InferenceFailed("broken session")

    batcher = Batcher(make, BatchPolicy(lanes=1), clock=lambda: now[0])  # type: ignore[arg-type]
    for attempt in range(3):
        now[0] = 5.0 * attempt
        with pytest.raises(InferenceFailed):
            batcher.submit(patches_of(attempt, 4), Deadline(5))
    end = time.monotonic() + 5
    while batcher.rebuilds == 0 and time.monotonic() < end:
        time.sleep(0.01)
    assert batcher.rebuilds == 1
    assert batcher.submit(patches_of(9, 4), Deadline(5)).shape == (4, 16)
    batcher.close()


def test_a_model_that_hangs_costs_one_deadline_and_its_lane_is_replaced() -> None:
    release = threading.Event()
    calls: list[int] = []

    def hang_once(patches: UInt8) -> Float32:
        calls.append(1)
        if len(calls) == 1:
            release.wait(30)
        return describe(patches)

    batcher = Batcher(lambda: hang_once, BatchPolicy(lanes=1, stuck_s=0.1))
    with pytest.raises(DeadlineExceeded):
        batcher.submit(patches_of(1, 4), Deadline(0.3))
    good = patches_of(2, 4)
    np.testing.assert_allclose(batcher.submit(good, Deadline(5)), describe(good), atol=1e-6)
    release.set()
    batcher.close()


def test_rows_of_another_number_than_the_patches_are_refused() -> None:
    batcher = Batcher(lambda: lambda patches: describe(patches)[:-1], BatchPolicy(lanes=1))
    with pytest.raises(InferenceFailed):
        batcher.submit(patches_of(1, 4), Deadline(5))
    batcher.close()


def test_a_closed_batcher_refuses() -> None:
    batcher = Batcher(lambda: describe)
    batcher.close()
    with pytest.raises(ShuttingDown):
        batcher.submit(patches_of(1, 4), Deadline(5))
