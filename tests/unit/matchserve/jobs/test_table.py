"""The job table: leases, takeover, cancellation, quotas, events."""

from __future__ import annotations

from pathlib import Path

import pytest

from matchserve.errors import IdempotencyMismatch, QuotaExceeded, UnknownJob, WorkspaceMismatch
from matchserve.jobs.database import Database
from matchserve.jobs.table import MAX_ATTEMPTS, JobTable, new_lease_owner
from matchserve.limits import Quotas

BODY = {"kind": "match_collection", "collection": "a"}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(tmp_path: Path, clock: Clock) -> JobTable:
    quotas = Quotas(queued_jobs=3, finished_jobs=2)
    return JobTable(Database(tmp_path / "jobs.db"), quotas=quotas, lease_s=60, clock=clock)


def test_a_job_is_claimed_once_and_finished_by_its_holder_only(table: JobTable) -> None:
    job, is_new = table.submit("me", BODY, "collection:a")
    assert is_new
    assert job.state == "queued"
    claimed = table.claim("one")
    assert claimed is not None
    assert (claimed.id, claimed.attempts) == (job.id, 1)
    assert table.claim("two") is None
    assert not table.finish(job.id, "two", "succeeded", {})
    assert not table.extend(job.id, "two")
    assert table.extend(job.id, "one", {"stage": "match"})
    assert table.finish(job.id, "one", "succeeded", {"results": []})
    assert not table.finish(job.id, "one", "failed", {})
    assert table.get("me", job.id).state == "succeeded"


def test_an_expired_lease_is_taken_over_and_the_late_finish_ignored(
    table: JobTable, clock: Clock
) -> None:
    job, _ = table.submit("me", BODY, "collection:a")
    table.claim("one")
    clock.now += 50
    assert table.extend(job.id, "one")
    clock.now += 50
    assert table.claim("two") is None  # the lease was extended
    clock.now += 20
    taken = table.claim("two")
    assert taken is not None
    assert taken.attempts == 2
    assert table.is_wanted(job.id, "one") == "lost"
    assert not table.finish(job.id, "one", "succeeded", {})
    assert table.finish(job.id, "two", "succeeded", {})


def test_a_job_that_kills_its_processes_fails_in_the_end(table: JobTable, clock: Clock) -> None:
    job, _ = table.submit("me", BODY, "collection:a")
    for attempt in range(MAX_ATTEMPTS):
        assert table.claim(f"worker{attempt}") is not None
        clock.now += 61
    assert table.claim("last") is None
    failed = table.get("me", job.id)
    assert failed.state == "failed"
    assert failed.outcome is not None
    assert failed.outcome["error"]["code"] == "worker_lost"


def test_a_released_job_waits_again_and_keeps_its_attempts(table: JobTable) -> None:
    job, _ = table.submit("me", BODY, "collection:a")
    table.claim("one")
    table.release(job.id, "two")
    assert table.get("me", job.id).state == "running"
    table.release(job.id, "one")
    waiting = table.get("me", job.id)
    assert (waiting.state, waiting.attempts) == ("queued", 0)


def test_one_job_of_an_owner_runs_at_a_time(table: JobTable) -> None:
    first, _ = table.submit("me", BODY, "collection:a")
    second, _ = table.submit("me", BODY, "collection:a")
    other, _ = table.submit("you", BODY, "collection:a")
    claimed = [table.claim(f"w{n}") for n in range(3)]
    assert [job and job.id for job in claimed] == [first.id, other.id, None]
    table.finish(first.id, "w0", "succeeded", {})
    following = table.claim("w3")
    assert following is not None
    assert following.id == second.id


def test_cancelling(table: JobTable) -> None:
    running, _ = table.submit("me", BODY, "collection:a")
    queued, _ = table.submit("me", BODY, "collection:a")
    table.claim("one")
    assert table.cancel("me", queued.id).state == "cancelled"
    assert table.cancel("me", running.id).state == "running"
    assert table.is_wanted(running.id, "one") == "cancelled"
    with pytest.raises(UnknownJob):
        table.cancel("you", running.id)


def test_idempotency_keys_belong_to_an_owner_and_a_body(table: JobTable) -> None:
    first, _ = table.submit("me", BODY, "collection:a", "key")
    again, is_new = table.submit("me", BODY, "collection:a", "key")
    assert (again.id, is_new) == (first.id, False)
    other, is_new = table.submit("you", BODY, "collection:a", "key")
    assert is_new
    assert other.id != first.id
    with pytest.raises(IdempotencyMismatch):
        table.submit("me", {**BODY, "pairs": "exhaustive"}, "collection:a", "key")


def test_queued_jobs_have_a_quota_and_old_ones_are_forgotten(table: JobTable) -> None:
    jobs = [table.submit("me", BODY, "collection:a")[0].id for _ in range(3)]
    with pytest.raises(QuotaExceeded) as caught:
        table.submit("me", BODY, "collection:a")
    assert (caught.value.limit, caught.value.value) == (3, 4)
    for job in jobs:
        table.cancel("me", job)
    assert table.forget_oldest("me") == [jobs[0]]
    assert table.events(jobs[0]) == []
    assert [job.id for job in table.newest("me")] == [jobs[2], jobs[1]]
    assert [job.id for job in table.newest("me", before=jobs[2])] == [jobs[1]]
    assert table.newest("you", before=jobs[2]) == []
    assert table.newest("me", state="queued") == []


def test_events_are_numbered_without_gaps(table: JobTable) -> None:
    job, _ = table.submit("me", BODY, "collection:a")
    table.claim("one")
    for done in range(5):
        table.extend(job.id, "one", {"done": done})
    table.extend(job.id, "one")  # a sign of life is no event
    table.finish(job.id, "one", "succeeded", {"results": []})
    events = table.events(job.id)
    assert [event.seq for event in events] == list(range(1, 9))
    kinds = ["queued", "running", *["progress"] * 5, "succeeded"]
    assert [event.kind for event in events] == kinds
    assert [event.seq for event in table.events(job.id, after=6)] == [7, 8]


def test_names_of_processes_are_never_used_twice() -> None:
    assert new_lease_owner() != new_lease_owner()


def test_a_database_of_another_version_is_refused(tmp_path: Path) -> None:
    database = Database(tmp_path / "jobs.db")
    with database.write() as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(WorkspaceMismatch, match="99"):
        Database(tmp_path / "jobs.db")
