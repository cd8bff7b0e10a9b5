"""Python clients of a matchserve service: `Client` for normal code, `AsyncClient` for asyncio.

>>> from matchserve.client import Client
>>> with Client("http://localhost:8000") as client:  # doctest: +SKIP
...     result = client.match("a.jpg", "b.jpg", verify="homography")
...     result.points0, result.points1
"""

from __future__ import annotations

import asyncio
import io
import time
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import httpx
import numpy as np
from numpy.typing import NDArray

from matchserve.encoding import features_from_npz, features_npz
from matchserve.errors import CapacityError, InvalidParameter, MatchServeError
from matchserve.files import read_file
from matchserve.types import Features, Float32, Int32, UInt8

Source: TypeAlias = bytes | str | PathLike[str]
"""Encoded bytes, or a path to an image file."""

NPZ = "application/x-npz"
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
class ClientMatch:
    """The result of a match: keypoints of both images, index pairs, points, and the geometry.

    `match_confidence` is the probability that each match is right, None if the model gives none;
    `confidence` is that of the geometry. `points1` are refined where `refined` says so, and
    `affine` (M, 2, 2) are the local maps, None without refinement. With `verify="pose"`,
    `geometry_pose` is (R | t), 3x4, and `geometry_cameras` are the cameras that were used.
    """

    model: str
    keypoints0: Float32
    keypoints1: Float32
    matches: Int32
    scores: Float32
    inliers: NDArray[np.bool_]
    geometry_kind: str
    geometry_matrix: NDArray[np.float64] | None
    confidence: float
    same_scene: float | None
    points0: Float32
    points1: Float32
    match_confidence: Float32 | None
    refined: NDArray[np.bool_]
    affine: Float32 | None
    orientation: str
    geometry_reason: str
    geometry_pose: NDArray[np.float64] | None
    geometry_cameras: tuple[str, str] | None


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


def _bytes(source: Source) -> bytes:
    return source if isinstance(source, bytes) else read_file(Path(source))


def _fields(options: dict[str, Any]) -> dict[str, str]:
    """Convert options to form fields; None means the default of the service."""
    texts = {True: "true", False: "false"}
    return {
        name: texts[value] if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }


def _match_call(image0: Source, image1: Source, options: dict[str, Any], accept: str) -> _Call:
    files = {"image0": _bytes(image0), "image1": _bytes(image1)}
    return _Call("POST", "/v1/match", accept, {"files": files, "data": _fields(options)})


def _features_call(image: Source, options: dict[str, Any]) -> _Call:
    arguments = {"files": {"image": _bytes(image)}, "data": _fields(options)}
    return _Call("POST", "/v1/features", NPZ, arguments)


def _match_features_call(
    features0: Features, features1: Features, options: dict[str, Any]
) -> _Call:
    files = {"features0": features_npz(features0), "features1": features_npz(features1)}
    arguments = {"files": files, "data": _fields(options)}
    return _Call("POST", "/v1/features/match", NPZ, arguments)


def _patches_call(patches: UInt8, model: str | None) -> _Call:
    if patches.dtype != np.uint8 or patches.ndim not in (3, 4):
        raise InvalidParameter("patches must be uint8 arrays of shape (N, S, S) or (N, 1, S, S)")
    arguments = {
        "content": patches.tobytes(),
        "params": {"model": model or ""},
        "headers": {"Accept": NPZ, "Content-Type": "application/octet-stream"},
    }
    return _Call("POST", "/v1/patches", NPZ, arguments)


def _read_match(answer: httpx.Response) -> ClientMatch:
    with np.load(io.BytesIO(answer.content), allow_pickle=False) as arrays:
        matrix, cameras = arrays["geometry_matrix"], arrays["geometry_cameras"]
        return ClientMatch(
            model=str(arrays["model"]),
            keypoints0=arrays["keypoints0"],
            keypoints1=arrays["keypoints1"],
            matches=arrays["matches"],
            scores=arrays["scores"],
            inliers=arrays["inliers"],
            geometry_kind=str(arrays["geometry_kind"]),
            geometry_matrix=None if np.isnan(matrix).any() else matrix,
            confidence=float(arrays["geometry_confidence"]),
            same_scene=None if np.isnan(arrays["same_scene"]) else float(arrays["same_scene"]),
            points0=arrays["points0"],
            points1=arrays["points1"],
            match_confidence=_unless_nan(arrays["confidence"]),
            refined=arrays["refined"],
            affine=_unless_nan(arrays["affine"]),
            orientation=str(arrays["orientation"]),
            geometry_reason=str(arrays["geometry_reason"]),
            geometry_pose=_unless_nan(arrays["geometry_pose"]),
            geometry_cameras=(str(cameras[0]), str(cameras[1])) if cameras[0] else None,
        )


def _unless_nan(values: NDArray[Any]) -> NDArray[Any] | None:
    return None if np.isnan(values).any() else values


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
        return _read_match(self._send(_match_call(image0, image1, options, NPZ)))

    def match_as(self, media_type: str, image0: Source, image1: Source, **options: Any) -> bytes:
        """Match two images and return the body as the media type `accept`."""
        return self._send(_match_call(image0, image1, options, media_type)).content

    def features(self, image: Source, **options: Any) -> Features:
        """Describe an image; options are the fields of POST /v1/features."""
        return features_from_npz(self._send(_features_call(image, options)).content)

    def match_features(
        self, features0: Features, features1: Features, **options: Any
    ) -> ClientMatch:
        """Match two described images."""
        return _read_match(self._send(_match_features_call(features0, features1, options)))

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
        return _read_match(await self._send(_match_call(image0, image1, options, NPZ)))

    async def features(self, image: Source, **options: Any) -> Features:
        """Describe an image; options are the fields of POST /v1/features."""
        return features_from_npz((await self._send(_features_call(image, options))).content)

    async def match_features(
        self, features0: Features, features1: Features, **options: Any
    ) -> ClientMatch:
        """Match two described images."""
        call = _match_features_call(features0, features1, options)
        return _read_match(await self._send(call))

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
