"""Jobs on collections of images, as the Python client sees them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from matchserve.client_calls import BROKEN, Call, ServiceError, checked
from matchserve.errors import DeadlineExceeded, MissingInput
from matchserve.files import open_whole, read_file

FINISHED = ("succeeded", "failed", "cancelled")
"""States of a job that do not change any more."""

RECONNECT_S = 0.5
"""Seconds before a broken stream of events is opened again."""

_TYPES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp"}

OnProgress = Callable[[dict[str, Any]], None]
Send = Callable[[Call], httpx.Response]
Stream = Callable[[str, dict[str, str]], AbstractContextManager[httpx.Response]]


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened to a job; `fields` of the kind "progress" are stage, done, total."""

    number: int
    kind: str
    fields: dict[str, Any]


class JobFields:
    """What the service last said about a job."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self._shown: Any = None

    @property
    def id(self) -> str:
        """Name of the job."""
        return str(self.fields["id"])

    @property
    def state(self) -> str:
        """State when the service was last asked: queued, running, succeeded, failed, cancelled."""
        return str(self.fields["state"])

    def results(self) -> list[str]:
        """Return the names of the files that can be downloaded."""
        return [str(file["name"]) for file in self.fields["results"]]

    @property
    def path(self) -> str:
        """Address of the job in the service."""
        return f"/v1/jobs/{self.id}"

    def show(self, on_progress: OnProgress | None) -> None:
        """Call `on_progress` if the progress has changed since the last call."""
        if on_progress is not None and self.fields["progress"] not in (None, self._shown):
            self._shown = self.fields["progress"]
            on_progress(self._shown)

    def check_time(self, end: float | None, timeout_s: float | None) -> None:
        """Check that the time of `time.monotonic` is not over.

        Raises:
            DeadlineExceeded: it is.
        """
        if end is not None and timeout_s is not None and time.monotonic() >= end:
            raise DeadlineExceeded(f"job {self.id} is {self.state} after {timeout_s:g} s")

    def check_success(self) -> None:
        """Check that a finished job has succeeded.

        Raises:
            ServiceError: the job failed or was cancelled.
        """
        if self.state != "succeeded":
            problem = self.fields["error"] or {"code": "cancelled", "detail": "cancelled"}
            detail = f"job {self.id}: {problem.get('detail', self.state)}"
            raise ServiceError(int(problem.get("status", 409)), {**problem, "detail": detail})


class EventReader:
    """Assembles the events of a job from the lines of a stream."""

    def __init__(self) -> None:
        self._current: dict[str, str] = {}

    def read(self, line: str) -> JobEvent | None:
        """Take one line; return the event that it ends, if it ends one."""
        name, _, value = line.partition(": ")
        if name in ("id", "event", "data"):
            self._current[name] = value
        elif not line and "id" in self._current:
            current, self._current = self._current, {}
            return JobEvent(int(current["id"]), current["event"], json.loads(current["data"]))
        return None


class ClientJob(JobFields):
    """A job of the service; `fields` is what the service last said about it."""

    def __init__(self, fields: dict[str, Any], send: Send, stream: Stream) -> None:
        super().__init__(fields)
        self._send, self._stream = send, stream

    def refresh(self) -> ClientJob:
        """Ask the service for the state; return this job."""
        self.fields = self._send(Call("GET", self.path)).json()
        return self

    def events(self) -> Iterator[JobEvent]:
        """Yield all events of the job until it is finished; continue after a lost connection.

        Raises:
            ServiceError: the service refused the request.
        """
        last = 0
        while True:
            try:
                for event in self._events_after(last):
                    last = event.number
                    yield event
                    if event.kind in FINISHED:
                        self.refresh()
                        return
            except (*BROKEN, httpx.TimeoutException):
                pass
            time.sleep(RECONNECT_S)

    def wait(
        self, on_progress: OnProgress | None = None, *, timeout_s: float | None = None
    ) -> ClientJob:
        """Wait until the job has succeeded; call `on_progress` with its progress.

        Raises:
            ServiceError: the job failed or was cancelled.
            DeadlineExceeded: it is not finished in time.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        pauses = poll_pauses()
        while self.refresh().state not in FINISHED:
            self.show(on_progress)
            self.check_time(end, timeout_s)
            time.sleep(next(pauses))
        self.check_success()
        return self

    def download(self, folder: str | PathLike[str], *names: str) -> list[Path]:
        """Download results, all of them by default, to a folder; return their paths.

        Raises:
            ServiceError: there is no such result.
        """
        paths = []
        for name in names or self.results():
            path = result_path(folder, name)
            with self._stream(f"{self.path}/results/{quote(name)}", {}) as answer:
                if not answer.is_success:
                    answer.read()
                checked(answer)
                with open_whole(path) as file:
                    for part in answer.iter_bytes():
                        file.write(part)
            paths.append(path)
        return paths

    def cancel(self) -> ClientJob:
        """Cancel the job; what it has done is used by the next one. Returns this job."""
        self.fields = self._send(Call("DELETE", self.path)).json()
        return self

    def _events_after(self, last: int) -> Iterator[JobEvent]:
        reader = EventReader()
        with self._stream(f"{self.path}/events", resume_headers(last)) as answer:
            if not answer.is_success:
                answer.read()
            for line in checked(answer).iter_lines():
                event = reader.read(line)
                if event is not None:
                    yield event


def poll_pauses() -> Iterator[float]:
    """Yield the seconds to wait before a job is asked for again, which grow to two."""
    pause = 0.1
    while True:
        yield pause
        pause = min(1.5 * pause, 2.0)


def resume_headers(last: int) -> dict[str, str]:
    """Return the headers that continue a stream of events after number `last`."""
    return {"Last-Event-ID": str(last)} if last else {}


def result_path(folder: str | PathLike[str], name: str) -> Path:
    """Return where a result is downloaded to; make the folder."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    return place / Path(name).name


def submit_call(kind: str, options: dict[str, Any], key: str | None) -> Call:
    """Make the request that starts a job; None means the service's default."""
    fields = {name: value for name, value in options.items() if value is not None}
    headers = {"Idempotency-Key": key or str(uuid.uuid4()), "Accept": "application/json"}
    arguments = {"json": {"kind": kind, **fields}, "headers": headers}
    return Call("POST", "/v1/jobs", arguments=arguments)


def upload_calls(collection: str, folder: str | PathLike[str]) -> Iterator[tuple[str, Call]]:
    """Make the requests that fill a collection with the images of a folder, and their names.

    Raises:
        MissingInput: the folder has no images.
    """
    root = Path(folder)
    files = sorted(path for path in root.rglob("*") if path.suffix.lower() in _TYPES)
    if not files:
        raise MissingInput(f"there are no JPEG, PNG or WebP files in {root}")
    path = f"/v1/collections/{quote(collection, safe='')}"
    yield "", Call("PUT", path)
    for file in files:
        name = file.relative_to(root).as_posix()
        headers = {"Content-Type": _TYPES[file.suffix.lower()], "Accept": "application/json"}
        arguments = {"content": read_file(file), "headers": headers}
        yield name, Call("PUT", f"{path}/images/{quote(name)}", arguments=arguments)
