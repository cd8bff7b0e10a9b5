"""Python clients of a matchserve service: `Client` for normal code, `AsyncClient` for asyncio.

>>> from matchserve.client import Client
>>> with Client("http://localhost:8000") as client:  # doctest: +SKIP
...     result = client.match("a.jpg", "b.jpg", verify="homography")
...     result.points0, result.points1
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from os import PathLike
from types import TracebackType
from typing import Any, Self

import httpx
from numpy.typing import NDArray

from matchserve import client_calls as calls
from matchserve.client_async import AsyncClient as AsyncClient
from matchserve.client_async_jobs import AsyncClientJob as AsyncClientJob
from matchserve.client_calls import ServiceError as ServiceError
from matchserve.client_calls import Unreachable as Unreachable
from matchserve.client_jobs import ClientJob as ClientJob
from matchserve.client_jobs import submit_call, upload_calls
from matchserve.client_results import ClientMatch as ClientMatch
from matchserve.client_results import read_match
from matchserve.client_sources import Source as Source
from matchserve.encoding import features_from_npz
from matchserve.types import Features, UInt8


class Client:
    """A blocking client; close it, or use it in a `with` block.

    If the service is busy (429, 502, 503), a request is repeated up to `retries` times after the
    time that the service names. A broken connection is opened again once.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 3,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.retries = retries
        self._http = httpx.Client(
            base_url=calls.base_url(url),
            timeout=timeout_s,
            headers=calls.headers(api_key),
            transport=transport,
        )

    def match(self, image0: Source, image1: Source, **options: Any) -> ClientMatch:
        """Match two images; options are the fields of POST /v1/match.

        Raises:
            ServiceError: the service returned an error.
        """
        call = calls.match_call(image0, image1, options, calls.MSGPACK)
        return read_match(self._send(call).content)

    def match_as(self, media_type: str, image0: Source, image1: Source, **options: Any) -> bytes:
        """Match two images and return the body of the response in the format `media_type`."""
        return self._send(calls.match_call(image0, image1, options, media_type)).content

    def features(self, image: Source, **options: Any) -> Features:
        """Describe an image; options are the fields of POST /v1/features."""
        return features_from_npz(self._send(calls.features_call(image, options)).content)

    def match_many(
        self,
        images: Sequence[Source],
        pairs: Sequence[tuple[int, int]] | None = None,
        **options: Any,
    ) -> list[ClientMatch | ServiceError]:
        """Match pairs of images, which are sent once; every two images by default.

        A pair that fails has its error in the list.

        Raises:
            ServiceError: the service refused the whole request.
        """
        return calls.read_batch(self._send(calls.batch_call(images, pairs, options)))

    def store(self, features: Features) -> str:
        """Store features in the service and return the id that names them afterwards."""
        return str(self._send(calls.store_call(features)).json()["id"])

    def store_image(self, image: Source, **options: Any) -> str:
        """Describe an image and store its features in the service; return their id."""
        return str(self._send(calls.store_image_call(image, options)).json()["id"])

    def match_features(
        self, features0: Features | str, features1: Features | str, **options: Any
    ) -> ClientMatch:
        """Match two described images; a text is the id of stored features."""
        call = calls.match_features_call(features0, features1, options)
        return read_match(self._send(call).content)

    def patches(self, patches: UInt8, model: str | None = None) -> NDArray[Any]:
        """Return one descriptor row for each of (N, S, S) uint8 patches."""
        return calls.read_rows(self._send(calls.patches_call(patches, model)))

    def models(self) -> dict[str, Any]:
        """Return the models of the service with their cards."""
        listed: dict[str, Any] = self._send(calls.Call("GET", "/v1/models")).json()
        return listed

    def upload(self, collection: str, folder: str | PathLike[str]) -> list[str]:
        """Create a collection, if there is none, and upload the images of a folder.

        Returns the names of the images, relative to the folder. Images that the service has are
        not stored again.

        Raises:
            MissingInput: the folder has no JPEG, PNG or WebP files.
            ServiceError: the service refused an image, or has another one of that name.
        """
        names = []
        for name, call in upload_calls(collection, folder):
            self._send(call)
            names += [name] if name else []
        return names

    def submit(self, kind: str, *, idempotency_key: str | None = None, **options: Any) -> ClientJob:
        """Start a job, "match_collection" or "reconstruct"; options are fields of POST /v1/jobs.

        Without a key the request gets one of its own, so that it can be repeated safely.

        Raises:
            ServiceError: the service refused the job.
        """
        answer = self._send(submit_call(kind, options, idempotency_key))
        return ClientJob(answer.json(), self._send, self._stream)

    def job(self, name: str) -> ClientJob:
        """Return a job that was started before, by its id.

        Raises:
            ServiceError: there is no such job.
        """
        answer = self._send(calls.Call("GET", f"/v1/jobs/{name}"))
        return ClientJob(answer.json(), self._send, self._stream)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, call: calls.Call) -> httpx.Response:
        answer = self._request(call)
        for _ in range(self.retries):
            if answer.status_code not in calls.RETRY_STATUSES:
                break
            time.sleep(calls.wait_s(answer))
            answer = self._request(call)
        return calls.checked(answer)

    def _stream(self, path: str, headers: dict[str, str]) -> AbstractContextManager[httpx.Response]:
        return self._http.stream("GET", path, headers=headers)

    def _request(self, call: calls.Call) -> httpx.Response:
        try:
            try:
                return self._http.request(call.method, call.path, **call.options())
            except calls.BROKEN:
                return self._http.request(call.method, call.path, **call.options())
        except httpx.TransportError as error:
            raise Unreachable(
                f"cannot reach the service at {self._http.base_url}: {error}"
            ) from error
