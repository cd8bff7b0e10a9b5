"""Python clients of a matchserve service: `Client` for normal code, `AsyncClient` for asyncio.

>>> from matchserve.client import Client
>>> with Client("http://localhost:8000") as client:  # doctest: +SKIP
...     result = client.match("a.jpg", "b.jpg", verify="homography")
...     result.points0, result.points1
"""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np
from numpy.typing import NDArray

from matchserve.client_results import ClientMatch as ClientMatch
from matchserve.client_results import match_from_fields, read_match, unpack
from matchserve.client_sources import Source as Source
from matchserve.client_sources import form, image_bytes
from matchserve.encoding import features_from_npz, features_npz
from matchserve.errors import CapacityError, InvalidParameter, MatchServeError
from matchserve.types import Features, UInt8

NPZ = "application/x-npz"
MSGPACK = "application/msgpack"
# A busy service says when to try again; this is the wait if it does not.
RETRY_STATUSES = (429, 502, 503)
DEFAULT_WAIT_S = 1.0
MAX_WAIT_S = 30.0
# The server closed the connection or its process ended; the request is safe to repeat.
BROKEN = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


class ServiceError(MatchServeError):
    """The service returned an error; `problem` is its problem+json."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(str(problem.get("detail") or f"the service returned status {status}"))
        self.http_status = status
        self.problem = problem
        self.problem_code = str(problem.get("code", "unknown"))


class Unreachable(CapacityError):
    """No service could be reached at the address."""

    code = "unreachable"


@dataclass(frozen=True, slots=True)
class _Call:
    """One HTTP request: method, path, accepted media type, and arguments for httpx."""

    method: str
    path: str
    accept: str = "application/json"
    arguments: dict[str, Any] | None = None

    def options(self) -> dict[str, Any]:
        return {"headers": {"Accept": self.accept}, **(self.arguments or {})}


def _wait_s(answer: httpx.Response) -> float:
    try:
        wait_s = float(answer.headers.get("retry-after", DEFAULT_WAIT_S))
        return max(0.0, min(MAX_WAIT_S, wait_s))
    except ValueError:
        return DEFAULT_WAIT_S


def _checked(answer: httpx.Response) -> httpx.Response:
    if answer.is_success:
        return answer
    try:
        problem = answer.json()
    except ValueError:
        problem = {}
    raise ServiceError(answer.status_code, problem if isinstance(problem, dict) else {})


def _base_url(url: str) -> str:
    """Return `url` with a scheme: `localhost:8000` means `http://localhost:8000`."""
    return url if "://" in url else f"http://{url}"


def _match_call(image0: Source, image1: Source, options: dict[str, Any], accept: str) -> _Call:
    files = {"image0": image_bytes(image0), "image1": image_bytes(image1)}
    return _Call("POST", "/v1/match", accept, form(files, options))


def _batch_call(
    images: Sequence[Source], pairs: Sequence[tuple[int, int]] | None, options: dict[str, Any]
) -> _Call:
    files = {f"image{n}": image_bytes(image) for n, image in enumerate(images)}
    if pairs is not None:
        options = {**options, "pairs": json.dumps([[int(i) for i in pair] for pair in pairs])}
    return _Call("POST", "/v1/match/batch", MSGPACK, form(files, options))


def _features_call(image: Source, options: dict[str, Any], accept: str = NPZ) -> _Call:
    return _Call("POST", "/v1/features", accept, form({"image": image_bytes(image)}, options))


def _store_image_call(image: Source, options: dict[str, Any]) -> _Call:
    stored = {**options, "store": True, "descriptors": "none"}
    return _features_call(image, stored, "application/json")


def _store_call(features: Features) -> _Call:
    arguments = {"files": {"features": features_npz(features)}}
    return _Call("POST", "/v1/features/stored", arguments=arguments)


def _match_features_call(
    features0: Features | str, features1: Features | str, options: dict[str, Any]
) -> _Call:
    files, named = {}, dict(options)
    for name, side in (("features0", features0), ("features1", features1)):
        if isinstance(side, str):
            named[f"{name}_id"] = side
        else:
            files[name] = features_npz(side)
    arguments = form(files, named)
    # Without a file, httpx would send the fields as a URL-encoded form.
    fields = {name: (None, text) for name, text in arguments["data"].items()}
    return _Call("POST", "/v1/features/match", MSGPACK, {"files": {**arguments["files"], **fields}})


def _patches_call(patches: UInt8, model: str | None) -> _Call:
    if patches.dtype != np.uint8 or patches.ndim not in (3, 4):
        raise InvalidParameter("patches must be uint8 arrays of shape (N, S, S) or (N, 1, S, S)")
    arguments = {
        "content": patches.tobytes(),
        "params": {"model": model or ""},
        "headers": {"Accept": NPZ, "Content-Type": "application/octet-stream"},
    }
    return _Call("POST", "/v1/patches", NPZ, arguments)


def _read_batch(answer: httpx.Response) -> list[ClientMatch | ServiceError]:
    results: list[ClientMatch | ServiceError] = []
    for item in unpack(answer.content)["results"]:
        problem = item["error"]
        if problem is None:
            results.append(match_from_fields(item["result"]))
        else:
            results.append(ServiceError(int(problem["status"]), problem))
    return results


def _read_rows(answer: httpx.Response) -> NDArray[Any]:
    with np.load(io.BytesIO(answer.content), allow_pickle=False) as arrays:
        return np.asarray(arrays["descriptors"])


def _headers(api_key: str | None) -> dict[str, str]:
    return {"X-API-Key": api_key} if api_key else {}


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
            base_url=_base_url(url),
            timeout=timeout_s,
            headers=_headers(api_key),
            transport=transport,
        )

    def match(self, image0: Source, image1: Source, **options: Any) -> ClientMatch:
        """Match two images; options are the fields of POST /v1/match.

        Raises:
            ServiceError: the service returned an error.
        """
        return read_match(self._send(_match_call(image0, image1, options, MSGPACK)).content)

    def match_as(self, media_type: str, image0: Source, image1: Source, **options: Any) -> bytes:
        """Match two images and return the body as the media type `accept`."""
        return self._send(_match_call(image0, image1, options, media_type)).content

    def features(self, image: Source, **options: Any) -> Features:
        """Describe an image; options are the fields of POST /v1/features."""
        return features_from_npz(self._send(_features_call(image, options)).content)

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
        return _read_batch(self._send(_batch_call(images, pairs, options)))

    def store(self, features: Features) -> str:
        """Store features in the service and return the id that names them afterwards."""
        return str(self._send(_store_call(features)).json()["id"])

    def store_image(self, image: Source, **options: Any) -> str:
        """Describe an image and store its features in the service; return their id."""
        return str(self._send(_store_image_call(image, options)).json()["id"])

    def match_features(
        self, features0: Features | str, features1: Features | str, **options: Any
    ) -> ClientMatch:
        """Match two described images; a text is the id of stored features."""
        call = _match_features_call(features0, features1, options)
        return read_match(self._send(call).content)

    def patches(self, patches: UInt8, model: str | None = None) -> NDArray[Any]:
        """Return one descriptor row for each of (N, S, S) uint8 patches."""
        return _read_rows(self._send(_patches_call(patches, model)))

    def models(self) -> dict[str, Any]:
        """Return the models of the service with their cards."""
        listed: dict[str, Any] = self._send(_Call("GET", "/v1/models")).json()
        return listed

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

    def _send(self, call: _Call) -> httpx.Response:
        answer = self._request(call)
        for _ in range(self.retries):
            if answer.status_code not in RETRY_STATUSES:
                break
            time.sleep(_wait_s(answer))
            answer = self._request(call)
        return _checked(answer)

    def _request(self, call: _Call) -> httpx.Response:
        try:
            try:
                return self._http.request(call.method, call.path, **call.options())
            except BROKEN:
                return self._http.request(call.method, call.path, **call.options())
        except httpx.TransportError as error:
            raise Unreachable(
                f"cannot reach the service at {self._http.base_url}: {error}"
            ) from error


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
            base_url=_base_url(url),
            timeout=timeout_s,
            headers=_headers(api_key),
            transport=transport,
        )

    async def match(self, image0: Source, image1: Source, **options: Any) -> ClientMatch:
        """Match two images; options are the fields of POST /v1/match.

        Raises:
            ServiceError: the service returned an error.
        """
        return read_match((await self._send(_match_call(image0, image1, options, MSGPACK))).content)

    async def features(self, image: Source, **options: Any) -> Features:
        """Describe an image; options are the fields of POST /v1/features."""
        return features_from_npz((await self._send(_features_call(image, options))).content)

    async def match_many(
        self,
        images: Sequence[Source],
        pairs: Sequence[tuple[int, int]] | None = None,
        **options: Any,
    ) -> list[ClientMatch | ServiceError]:
        """Match pairs of images, which are sent once; every two images by default."""
        return _read_batch(await self._send(_batch_call(images, pairs, options)))

    async def store(self, features: Features) -> str:
        """Store features in the service and return the id that names them afterwards."""
        return str((await self._send(_store_call(features))).json()["id"])

    async def store_image(self, image: Source, **options: Any) -> str:
        """Describe an image and store its features in the service; return their id."""
        return str((await self._send(_store_image_call(image, options))).json()["id"])

    async def match_features(
        self, features0: Features | str, features1: Features | str, **options: Any
    ) -> ClientMatch:
        """Match two described images; a text is the id of stored features."""
        call = _match_features_call(features0, features1, options)
        return read_match((await self._send(call)).content)

    async def patches(self, patches: UInt8, model: str | None = None) -> NDArray[Any]:
        """Return one descriptor row for each of (N, S, S) uint8 patches."""
        return _read_rows(await self._send(_patches_call(patches, model)))

    async def models(self) -> dict[str, Any]:
        """Return the models of the service with their cards."""
        listed: dict[str, Any] = (await self._send(_Call("GET", "/v1/models"))).json()
        return listed

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

    async def _send(self, call: _Call) -> httpx.Response:
        answer = await self._request(call)
        for _ in range(self.retries):
            if answer.status_code not in RETRY_STATUSES:
                break
            await asyncio.sleep(_wait_s(answer))
            answer = await self._request(call)
        return _checked(answer)

    async def _request(self, call: _Call) -> httpx.Response:
        try:
            try:
                return await self._http.request(call.method, call.path, **call.options())
            except BROKEN:
                return await self._http.request(call.method, call.path, **call.options())
        except httpx.TransportError as error:
            raise Unreachable(
                f"cannot reach the service at {self._http.base_url}: {error}"
            ) from error
