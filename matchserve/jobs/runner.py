"""Claims jobs and watches their processes: one at a time for each runner."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matchserve.errors import MatchServeError
from matchserve.jobs.kinds import Order
from matchserve.jobs.process import order_text
from matchserve.jobs.table import Job, JobTable, State, new_lease_owner

CHECK_S = 0.5
"""Time between two looks at the table: for new jobs, and whether a running one is cancelled."""

PROGRESS_S = 1.0
EVENTS_PER_JOB = 1000
"""Number of progress events after which they become rarer, so that a long job has few."""

_log = logging.getLogger(__name__)

Lines = queue.SimpleQueue[dict[str, Any] | None]
"""Lines of a job's process; None after the last one."""

MakeOrder = Callable[[Job], Order]
"""Returns the order of a job, or raises MatchServeError, e.g. when its folder has vanished."""


@dataclass(slots=True)
class _Outcome:
    state: State
    fields: dict[str, Any]


class Runner:
    """Runs jobs until it is stopped; each job has a process of its own."""

    def __init__(
        self, table: JobTable, make_order: MakeOrder, logs: Path, *, max_job_s: float = 86_400.0
    ) -> None:
        self.table, self._make_order, self._logs = table, make_order, logs
        self._max_job_s = max_job_s
        self._name = new_lease_owner()
        self._is_stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Run jobs on a thread of this process."""
        self._thread = threading.Thread(target=self.run, name="matchserve-jobs", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop; a running job goes back into the queue, and continues where it was."""
        self._is_stopping.set()
        if self._thread is not None:
            self._thread.join(10)

    def run(self, *, until_idle: bool = False) -> None:
        """Run jobs until `stop`, or until no job waits."""
        while not self._is_stopping.is_set():
            try:
                job = self.table.claim(self._name) if self.table.is_waiting() else None
                if job is not None:
                    self._run_job(job)
                elif until_idle:
                    return
            except MatchServeError as error:
                _log.error("jobs: %s", error.message)
                self._is_stopping.wait(10 * CHECK_S)
                continue
            if job is None:
                self._is_stopping.wait(CHECK_S)

    def _run_job(self, job: Job) -> None:
        _log.info("job %s started", job.id, extra={"job": job.id, "kind": job.kind})
        try:
            outcome = self._watch(job, self._make_order(job))
        except MatchServeError as error:
            outcome = _failed(error.code, error.message)
        except Exception:  # noqa: BLE001
            # One job must not end the thread that runs the others.
            _log.exception("job %s failed", job.id)
            outcome = _failed(MatchServeError.code, "something went wrong here")
        if outcome is None:  # the lease is lost, or the runner is stopping
            return
        if self.table.finish(job.id, self._name, outcome.state, outcome.fields):
            _log.info("job %s %s", job.id, outcome.state, extra={"job": job.id})

    def _watch(self, job: Job, order: Order) -> _Outcome | None:
        """Pass on the progress of the job's process until it ends or must be killed."""
        meter = _ProgressMeter(self.table, job.id, self._name)
        end = time.monotonic() + self._max_job_s
        self._logs.mkdir(parents=True, exist_ok=True)
        with _process(order, self._logs / f"{job.id}.log") as (process, lines):
            while True:
                for line in _ready(lines):
                    if line is None:
                        detail = f"the process of the job ended with code {process.wait()}"
                        return _failed("worker_lost", detail)
                    if "progress" not in line:
                        return _outcome(line)
                    meter.add(line["progress"])
                if time.monotonic() > end:
                    return _failed("deadline_exceeded", "the job took longer than it may")
                match self._interruption(job.id, meter):
                    case "cancelled":
                        return _Outcome("cancelled", {})
                    case "lost":
                        return None

    def _interruption(self, job: str, meter: _ProgressMeter) -> Literal["yes", "cancelled", "lost"]:
        """Return whether a job goes on; release it if the runner is stopping."""
        if self._is_stopping.is_set():
            self.table.release(job, self._name)
            return "lost"
        wanted = self.table.is_wanted(job, self._name)
        return "lost" if wanted == "yes" and not meter.keep_lease() else wanted


class _ProgressMeter:
    """Writes progress to the table, not too often, and keeps the lease."""

    def __init__(self, table: JobTable, job: str, lease_owner: str) -> None:
        self._table, self._job, self._lease_owner = table, job, lease_owner
        self._start = time.monotonic()
        self._written = self._start
        self._stage = ""
        self._pending: dict[str, Any] | None = None

    def add(self, progress: dict[str, Any]) -> None:
        """Note progress; the first of each stage is written at once."""
        self._pending = progress
        now = time.monotonic()
        pause = max(PROGRESS_S, (now - self._start) / EVENTS_PER_JOB)
        if progress["stage"] != self._stage or now - self._written >= pause:
            self._stage = progress["stage"]
            self._write()

    def keep_lease(self) -> bool:
        """Extend the lease in time; return whether it is held."""
        if time.monotonic() - self._written < self._table.lease_s / 4:
            return True
        return self._write()

    def _write(self) -> bool:
        self._written = time.monotonic()
        pending, self._pending = self._pending, None
        return self._table.extend(self._job, self._lease_owner, pending)


def _outcome(line: dict[str, Any]) -> _Outcome:
    """Return the outcome that the last line of a process says."""
    if "outcome" in line:
        return _Outcome("succeeded", line["outcome"])
    return _Outcome("failed", {"error": line["error"]})


def _failed(code: str, detail: str) -> _Outcome:
    return _Outcome("failed", {"error": {"code": code, "detail": detail}})


@contextmanager
def _process(order: Order, log: Path) -> Iterator[tuple[subprocess.Popen[str], Lines]]:
    """Start the process of a job with a queue of its lines; kill it and its children at the end.

    Every file is written completely or not at all, so a job that was killed can be continued.
    """
    lines: Lines = queue.SimpleQueue()
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "matchserve.jobs.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # Ctrl-C is for the service. In a session of its own the priority of the job would only
            # count among its own processes.
            process_group=0,
        ) as process,
    ):
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the process has no pipes")
        reader = threading.Thread(target=_read_lines, args=(stdout, lines), daemon=True)
        reader.start()
        try:
            # Standard input stays open: when it closes, the process ends. A process that is dead
            # already is noticed by the end of its lines.
            with contextlib.suppress(BrokenPipeError):
                print(order_text(order), file=stdin, flush=True)
            yield process, lines
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reader.join(5)
            with contextlib.suppress(BrokenPipeError):
                stdin.close()


def _read_lines(stream: Any, lines: Lines) -> None:
    with contextlib.suppress(ValueError):  # closed, or half a line of a killed process
        for line in stream:
            lines.put(json.loads(line))
    lines.put(None)


def _ready(lines: Lines) -> Iterator[dict[str, Any] | None]:
    """Yield the lines that are there; wait a moment for the first one."""
    with contextlib.suppress(queue.Empty):
        yield lines.get(timeout=CHECK_S)
        while True:
            yield lines.get_nowait()
