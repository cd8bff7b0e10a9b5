"""Jobs on collections of images, as the asynchronous Python client sees them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from matchserve import client_jobs as jobs
from matchserve.client_calls import BROKEN, Call, checked
from matchserve.files import open_whole

AsyncSend = Callable[[Call], Awaitable[httpx.Response]]
AsyncStream = Callable[[str, dict[str, str]], AbstractAsyncContextManager[httpx.Response]]


class AsyncClientJob(jobs.JobFields):
    """A job of the service for asyncio; `fields` is what the service last said about it."""

    def __init__(self, fields: dict[str, Any], send: AsyncSend, stream: AsyncStream) -> None:
        super().__init__(fields)
        self._send, self._stream = send, stream

    async def refresh(self) -> AsyncClientJob:
        """Ask the service for the state; return this job."""
        self.fields = (await self._send(Call("GET", self.path))).json()
        return self

    async def events(self) -> AsyncIterator[jobs.JobEvent]:
        """Yield all events of the job until it is finished; continue after a lost connection.

        Raises:
            ServiceError: the service refused the request.
        """
        last = 0
        while True:
            try:
                async with aclosing(self._events_after(last)) as events:
                    async for event in events:
                        last = event.number
                        yield event
                        if event.kind in jobs.FINISHED:
                            await self.refresh()
                            return
            except (*BROKEN, httpx.TimeoutException):
                pass
            await asyncio.sleep(jobs.RECONNECT_S)

    async def wait(
        self, on_progress: jobs.OnProgress | None = None, *, timeout_s: float | None = None
    ) -> AsyncClientJob:
        """Wait until the job has succeeded; call `on_progress` with its progress.

        Raises:
            ServiceError: the job failed or was cancelled.
            DeadlineExceeded: it is not finished in time.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        pauses = jobs.poll_pauses()
        while (await self.refresh()).state not in jobs.FINISHED:
            self.show(on_progress)
            self.check_time(end, timeout_s)
            await asyncio.sleep(next(pauses))
        self.check_success()
        return self

    async def download(self, folder: str | PathLike[str], *names: str) -> list[Path]:
        """Download results, all of them by default, to a folder; return their paths.

        Raises:
            ServiceError: there is no such result.
        """
        paths = []
        for name in names or self.results():
            path = jobs.result_path(folder, name)
            async with self._stream(f"{self.path}/results/{quote(name)}", {}) as answer:
                if not answer.is_success:
                    await answer.aread()
                checked(answer)
                with open_whole(path) as file:
                    async for part in answer.aiter_bytes():
                        await asyncio.to_thread(file.write, part)
            paths.append(path)
        return paths

    async def cancel(self) -> AsyncClientJob:
        """Cancel the job; what it has done is used by the next one. Returns this job."""
        self.fields = (await self._send(Call("DELETE", self.path))).json()
        return self

    async def _events_after(self, last: int) -> AsyncGenerator[jobs.JobEvent, None]:
        reader = jobs.EventReader()
        headers = jobs.resume_headers(last)
        async with self._stream(f"{self.path}/events", headers) as answer:
            if not answer.is_success:
                await answer.aread()
            async for line in checked(answer).aiter_lines():
                event = reader.read(line)
                if event is not None:
                    yield event
