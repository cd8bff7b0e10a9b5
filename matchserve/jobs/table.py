"""The table of jobs: submit, claim with a lease, report, finish, cancel.

A job belongs to the process that holds its lease. A process that dies lets the lease expire, and
another one takes the job over; what the dead one reports afterwards changes nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from matchserve.errors import IdempotencyMismatch, QuotaExceeded, UnknownJob
from matchserve.jobs.database import Database
from matchserve.limits import DEFAULT_QUOTAS, Quotas

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
FINISHED: tuple[State, ...] = ("succeeded", "failed", "cancelled")

LEASE_S = 60.0
"""Time after which a job without a sign of life is given to another process."""

MAX_ATTEMPTS = 5
"""Number of times that a job may lose its process before it fails."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job. `outcome` has the results of a finished job, or the error of a failed one."""

    id: str
    kind: str
    owner: str
    target: str
    body: dict[str, Any]
    state: State
    progress: dict[str, Any] | None
    outcome: dict[str, Any] | None
    attempts: int
    is_cancelled: bool
    created: float
    started: float | None
    finished: float | None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job; `seq` counts from 1."""

    seq: int
    kind: str
    data: str


def wall_clock() -> float:
    """Return the time that all processes of a machine share; leases need it."""
    return time.time()  # noqa: TID251


def new_lease_owner() -> str:
    """Return a name for this process that no other process has, nor had or will have."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(6)}"


class JobTable:
    """Each method is one transaction."""

    def __init__(
        self,
        database: Database,
        *,
        quotas: Quotas = DEFAULT_QUOTAS,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = wall_clock,
    ) -> None:
        self.database, self.quotas, self.lease_s = database, quotas, lease_s
        self._clock = clock

    def submit(
        self, owner: str, body: dict[str, Any], target: str, key: str | None = None
    ) -> tuple[Job, bool]:
        """Add a job; return it and whether it is new: a known idempotency key returns its job.

        Raises:
            IdempotencyMismatch: the key was used with another body.
            QuotaExceeded: the owner has too many queued jobs.
        """
        text = json.dumps(body, sort_keys=True)
        with self.database.write() as db:
            if key is not None:
                row = db.execute(
                    "SELECT * FROM job WHERE owner = ? AND idempotency_key = ?", (owner, key)
                ).fetchone()
                if row is not None:
                    if row["body"] != text:
                        raise IdempotencyMismatch("this idempotency key had another body before")
                    return _job(row), False
            limit = self.quotas.queued_jobs
            (queued,) = db.execute(
                "SELECT count(*) FROM job WHERE owner = ? AND state = 'queued'", (owner,)
            ).fetchone()
            if queued >= limit:
                raise QuotaExceeded(f"{queued} jobs are queued", limit=limit, value=queued + 1)
            now = self._clock()
            name = _new_name(db, now)
            db.execute(
                "INSERT INTO job(id, kind, owner, target, idempotency_key, body, state, created) "
                "VALUES (?, ?, ?, ?, ?, ?, 'queued', ?)",
                (name, body["kind"], owner, target, key, text, now),
            )
            _add_event(db, name, now, "queued", {})
            return _job(db.execute("SELECT * FROM job WHERE id = ?", (name,)).fetchone()), True

    def get(self, owner: str, name: str) -> Job:
        """Return a job of an owner.

        Raises:
            UnknownJob: the owner has no such job.
        """
        with self.database.read() as db:
            return _owned(db, owner, name)

    def newest(
        self, owner: str, *, state: State | None = None, before: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Return the newest jobs of an owner, or those older than the job `before`."""
        with self.database.read() as db:
            rows = db.execute(
                "SELECT * FROM job WHERE owner = ?1 AND (?2 IS NULL OR state = ?2) "
                "AND (?3 IS NULL OR id < ?3) ORDER BY id DESC LIMIT ?4",
                (owner, state, before, limit),
            ).fetchall()
        return [_job(row) for row in rows]

    def cancel(self, owner: str, name: str) -> Job:
        """Cancel a job: at once if it is queued, soon if it is running.

        Raises:
            UnknownJob: the owner has no such job.
        """
        with self.database.write() as db:
            job = _owned(db, owner, name)
            if job.state == "queued":
                _finish(db, name, "cancelled", {}, self._clock())
            elif job.state == "running":
                db.execute("UPDATE job SET is_cancelled = 1 WHERE id = ?", (name,))
            return _owned(db, owner, name)

    def claim(self, lease_owner: str) -> Job | None:
        """Take the oldest job that waits or has lost its process; one at a time for each owner."""
        now = self._clock()
        with self.database.write() as db:
            lost = db.execute(
                "SELECT id FROM job WHERE state = 'running' AND lease_until < ? AND attempts >= ?",
                (now, MAX_ATTEMPTS),
            ).fetchall()
            for row in lost:
                error = {"code": "worker_lost", "detail": "the processes of the job died"}
                _finish(db, row["id"], "failed", {"error": error}, now)
            row = db.execute(
                "UPDATE job SET state = 'running', lease_owner = ?1, lease_until = ?2, "
                "attempts = attempts + 1, started = ifnull(started, ?3) WHERE id = ("
                "  SELECT id FROM job AS j WHERE (state = 'queued' AND NOT EXISTS ("
                "    SELECT 1 FROM job WHERE owner = j.owner AND state = 'running'))"
                "  OR (state = 'running' AND lease_until < ?3) ORDER BY id LIMIT 1) RETURNING *",
                (lease_owner, now + self.lease_s, now),
            ).fetchone()
            if row is None:
                return None
            _add_event(db, row["id"], now, "running", {"attempt": row["attempts"]})
            return _job(row)

    def is_waiting(self) -> bool:
        """Return whether a job waits for a process, without writing."""
        with self.database.read() as db:
            row = db.execute(
                "SELECT 1 FROM job WHERE state = 'queued' "
                "OR (state = 'running' AND lease_until < ?) LIMIT 1",
                (self._clock(),),
            ).fetchone()
        return row is not None

    def is_wanted(self, name: str, lease_owner: str) -> Literal["yes", "cancelled", "lost"]:
        """Return whether the holder of a lease should go on."""
        with self.database.read() as db:
            row = db.execute(
                "SELECT state, lease_owner, is_cancelled FROM job WHERE id = ?", (name,)
            ).fetchone()
        if row is None or row["state"] != "running" or row["lease_owner"] != lease_owner:
            return "lost"
        return "cancelled" if row["is_cancelled"] else "yes"

    def extend(self, name: str, lease_owner: str, progress: dict[str, Any] | None = None) -> bool:
        """Extend a lease, and report progress; return whether the lease is still held."""
        now = self._clock()
        with self.database.write() as db:
            found = db.execute(
                "UPDATE job SET lease_until = ?, progress = ifnull(?, progress) "
                "WHERE id = ? AND state = 'running' AND lease_owner = ?",
                (
                    now + self.lease_s, None if progress is None else json.dumps(progress),
                    name, lease_owner,
                ),
            )  # fmt: skip
            if found.rowcount and progress is not None:
                _add_event(db, name, now, "progress", progress)
            return bool(found.rowcount)

    def finish(self, name: str, lease_owner: str, state: State, outcome: dict[str, Any]) -> bool:
        """Record the end of a job; return False if another process has taken it over."""
        with self.database.write() as db:
            found = db.execute(
                "SELECT 1 FROM job WHERE id = ? AND state = 'running' AND lease_owner = ?",
                (name, lease_owner),
            ).fetchone()
            if found is not None:
                _finish(db, name, state, outcome, self._clock())
            return found is not None

    def release(self, name: str, lease_owner: str) -> None:
        """Put a job back into the queue, for a process that ends in good order."""
        with self.database.write() as db:
            found = db.execute(
                "UPDATE job SET state = 'queued', lease_owner = NULL, lease_until = NULL, "
                "attempts = attempts - 1 WHERE id = ? AND state = 'running' AND lease_owner = ?",
                (name, lease_owner),
            )
            if found.rowcount:
                _add_event(db, name, self._clock(), "queued", {})

    def events(self, name: str, after: int = 0, limit: int = 200) -> list[Event]:
        """Return the events of a job after number `after`, in order."""
        with self.database.read() as db:
            rows = db.execute(
                "SELECT seq, kind, data FROM job_event WHERE job = ? AND seq > ? "
                "ORDER BY seq LIMIT ?",
                (name, after, limit),
            ).fetchall()
        return [Event(*row) for row in rows]

    def forget_oldest(self, owner: str) -> list[str]:
        """Remove the oldest finished jobs of an owner beyond its quota; return their names."""
        with self.database.write() as db:
            rows = db.execute(
                "DELETE FROM job WHERE id IN (SELECT id FROM job WHERE owner = ? AND state IN "
                "('succeeded', 'failed', 'cancelled') ORDER BY id DESC LIMIT -1 OFFSET ?) "
                "RETURNING id",
                (owner, self.quotas.finished_jobs),
            ).fetchall()
        return [row["id"] for row in rows]

    def counts(self) -> dict[str, int]:
        """Return the number of jobs by state."""
        with self.database.read() as db:
            return dict(db.execute("SELECT state, count(*) FROM job GROUP BY state").fetchall())


def _new_name(db: sqlite3.Connection, now: float) -> str:
    """Return a name that sorts after all others and cannot be guessed."""
    (last,) = db.execute("SELECT max(id) FROM job").fetchone()
    after = 0 if last is None else int(last.partition("-")[0], 16) + 1
    return f"{max(int(1e6 * now), after):014x}-{secrets.token_hex(10)}"


def _owned(db: sqlite3.Connection, owner: str, name: str) -> Job:
    row = db.execute("SELECT * FROM job WHERE id = ? AND owner = ?", (name, owner)).fetchone()
    if row is None:
        raise UnknownJob("there is no such job")
    return _job(row)


def _job(row: sqlite3.Row) -> Job:
    def value(name: str) -> dict[str, Any] | None:
        return None if row[name] is None else json.loads(row[name])

    return Job(
        row["id"], row["kind"], row["owner"], row["target"], json.loads(row["body"]), row["state"],
        value("progress"), value("outcome"), row["attempts"], bool(row["is_cancelled"]),
        row["created"], row["started"], row["finished"],
    )  # fmt: skip


def _finish(
    db: sqlite3.Connection, name: str, state: State, outcome: dict[str, Any], now: float
) -> None:
    db.execute(
        "UPDATE job SET state = ?, outcome = ?, finished = ?, lease_owner = NULL WHERE id = ?",
        (state, json.dumps(outcome), now, name),
    )
    _add_event(db, name, now, state, outcome)


def _add_event(
    db: sqlite3.Connection, name: str, now: float, kind: str, data: dict[str, Any]
) -> None:
    db.execute(
        "INSERT INTO job_event SELECT ?1, ifnull(max(seq), 0) + 1, ?2, ?3, ?4 "
        "FROM job_event WHERE job = ?1",
        (name, now, kind, json.dumps(data)),
    )
