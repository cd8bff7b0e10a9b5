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

_RECONNECT_S = 0.5
_TYPES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp"}

Send = Callable[[Call], httpx.Response]
Stream = Callable[[str, dict[str, str]], AbstractContextManager[httpx.Response]]


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened to a job; `fields` of the kind "progress" are stage, done, total."""

    number: int
    kind: str
    fields: dict[str, Any]


class ClientJob:
    """A job of the service; `fields` is what the service last said about it."""

    def __init__(self, fields: dict[str, Any], send: Send, stream: Stream) -> None:
        self.fields = fields
        self._send, self._stream = send, stream

    @property
    def id(self) -> str:
        """Name of the job."""
        return str(self.fields["id"])

    @property
    def state(self) -> str:
        """State when the service was last asked: queued, running, succeeded, failed, cancelled."""
        return str(self.fields["state"])

    def refresh(self) -> ClientJob:
        """Ask the service for the state; return this job."""
        self.fields = self._send(Call("GET", self._path)).json()
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
            time.sleep(_RECONNECT_S)

    def wait(
        self,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> ClientJob:
        """Wait until the job has succeeded; call `on_progress` with its progress.

        Raises:
            ServiceError: the job failed or was cancelled.
            DeadlineExceeded: it is not finished in time.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        shown: Any = None
        pause = 0.1
        while self.refresh().state not in FINISHED:
            if on_progress is not None and self.fields["progress"] not in (None, shown):
                shown = self.fields["progress"]
                on_progress(shown)
            if end is not None and time.monotonic() >= end:
                raise DeadlineExceeded(f"job {self.id} is {self.state} after {timeout_s:g} s")
            time.sleep(pause)
            pause = min(1.5 * pause, 2.0)
        if self.state != "succeeded":
            problem = self.fields["error"] or {"code": "cancelled", "detail": "cancelled"}
            detail = f"job {self.id}: {problem.get('detail', self.state)}"
            raise ServiceError(int(problem.get("status", 409)), {**problem, "detail": detail})
        return self

    def results(self) -> list[str]:
        """Return the names of the files that can be downloaded."""
        return [str(file["name"]) for file in self.fields["results"]]

    def download(self, folder: str | PathLike[str], *names: str) -> list[Path]:
        """Download results, all of them by default, to a folder; return their paths.

        Raises:
            ServiceError: there is no such result.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        paths = []
        for name in names or self.results():
            path = place / Path(name).name
            with self._stream(f"{self._path}/results/{quote(name)}", {}) as answer:
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
        self.fields = self._send(Call("DELETE", self._path)).json()
        return self

    @property
    def _path(self) -> str:
        return f"/v1/jobs/{self.id}"

    def _events_after(self, last: int) -> Iterator[JobEvent]:
        headers = {"Last-Event-ID": str(last)} if last else {}
        current: dict[str, str] = {}
        with self._stream(f"{self._path}/events", headers) as answer:
            if not answer.is_success:
                answer.read()
            for line in checked(answer).iter_lines():
                name, _, value = line.partition(": ")
                if name in ("id", "event", "data"):
                    current[name] = value
                elif not line and "id" in current:
                    fields = json.loads(current["data"])
                    yield JobEvent(int(current["id"]), current["event"], fields)
                    current = {}


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
