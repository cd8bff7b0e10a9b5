"""The Python client of a matchserve service for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from os import PathLike
from types import TracebackType
from typing import Any, Self

import httpx
from numpy.typing import NDArray

from matchserve import client_calls as calls
from matchserve.client_async_jobs import AsyncClientJob
from matchserve.client_calls import ServiceError, Unreachable
from matchserve.client_jobs import submit_call, upload_calls
from matchserve.client_results import ClientMatch, read_match
from matchserve.client_sources import Source
from matchserve.encoding import features_from_npz
from matchserve.types import Features, UInt8


class AsyncClient:
    """A client for asyncio with the methods of `Client`; use it in an `async with` block."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 3,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.retries = retries
        self._http = httpx.AsyncClient(
            base_url=calls.base_url(url),
            timeout=timeout_s,
            headers=calls.headers(api_key),
            transport=transport,
        )

    async def match(self, image0: Source, image1: Source, **options: Any) -> ClientMatch:
        """Match two images; options are the fields of POST /v1/match.

        Raises:
            ServiceError: the service returned an error.
        """
        call = calls.match_call(image0, image1, options, calls.MSGPACK)
        return read_match((await self._send(call)).content)

    async def match_as(
        self, media_type: str, image0: Source, image1: Source, **options: Any
    ) -> bytes:
        """Match two images and return the body of the response in the format `media_type`."""
        call = calls.match_call(image0, image1, options, media_type)
        return (await self._send(call)).content

    async def features(self, image: Source, **options: Any) -> Features:
        """Describe an image; options are the fields of POST /v1/features."""
        return features_from_npz((await self._send(calls.features_call(image, options))).content)

    async def match_many(
        self,
        images: Sequence[Source],
        pairs: Sequence[tuple[int, int]] | None = None,
        **options: Any,
    ) -> list[ClientMatch | ServiceError]:
        """Match pairs of images, which are sent once; every two images by default."""
        return calls.read_batch(await self._send(calls.batch_call(images, pairs, options)))

    async def store(self, features: Features) -> str:
        """Store features in the service and return the id that names them afterwards."""
        return str((await self._send(calls.store_call(features))).json()["id"])

    async def store_image(self, image: Source, **options: Any) -> str:
        """Describe an image and store its features in the service; return their id."""
        return str((await self._send(calls.store_image_call(image, options))).json()["id"])

    async def match_features(
        self, features0: Features | str, features1: Features | str, **options: Any
    ) -> ClientMatch:
        """Match two described images; a text is the id of stored features."""
        call = calls.match_features_call(features0, features1, options)
        return read_match((await self._send(call)).content)

    async def patches(self, patches: UInt8, model: str | None = None) -> NDArray[Any]:
        """Return one descriptor row for each of (N, S, S) uint8 patches."""
        return calls.read_rows(await self._send(calls.patches_call(patches, model)))

    async def models(self) -> dict[str, Any]:
        """Return the models of the service with their cards."""
        listed: dict[str, Any] = (await self._send(calls.Call("GET", "/v1/models"))).json()
        return listed

    async def upload(self, collection: str, folder: str | PathLike[str]) -> list[str]:
        """Create a collection, if there is none, and upload the images of a folder.

        Returns the names of the images, relative to the folder. Images that the service has are
        not stored again.

        Raises:
            MissingInput: the folder has no JPEG, PNG or WebP files.
            ServiceError: the service refused an image, or has another one of that name.
        """
        names = []
        requests = upload_calls(collection, folder)
        while (item := await asyncio.to_thread(next, requests, None)) is not None:
            name, call = item
            await self._send(call)
            names += [name] if name else []
        return names

    async def submit(
        self, kind: str, *, idempotency_key: str | None = None, **options: Any
    ) -> AsyncClientJob:
        """Start a job, "match_collection" or "reconstruct"; options are fields of POST /v1/jobs.

        Without a key the request gets one of its own, so that it can be repeated safely.

        Raises:
            ServiceError: the service refused the job.
        """
        answer = await self._send(submit_call(kind, options, idempotency_key))
        return AsyncClientJob(answer.json(), self._send, self._stream)

    async def job(self, name: str) -> AsyncClientJob:
        """Return a job that was started before, by its id.

        Raises:
            ServiceError: there is no such job.
        """
        answer = await self._send(calls.Call("GET", f"/v1/jobs/{name}"))
        return AsyncClientJob(answer.json(), self._send, self._stream)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _send(self, call: calls.Call) -> httpx.Response:
        answer = await self._request(call)
        for _ in range(self.retries):
            if answer.status_code not in calls.RETRY_STATUSES:
                break
            await asyncio.sleep(calls.wait_s(answer))
            answer = await self._request(call)
        return calls.checked(answer)

    def _stream(
        self, path: str, headers: dict[str, str]
    ) -> AbstractAsyncContextManager[httpx.Response]:
        return self._http.stream("GET", path, headers=headers)

    async def _request(self, call: calls.Call) -> httpx.Response:
        try:
            try:
                return await self._http.request(call.method, call.path, **call.options())
            except calls.BROKEN:
                return await self._http.request(call.method, call.path, **call.options())
        except httpx.TransportError as error:
            raise Unreachable(
                f"cannot reach the service at {self._http.base_url}: {error}"
            ) from error
