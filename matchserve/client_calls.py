"""The requests and responses of the Python clients, and their errors."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from matchserve.client_results import ClientMatch, match_from_fields, unpack
from matchserve.client_sources import Source, form, image_bytes
from matchserve.encoding import features_npz
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
class Call:
    """One HTTP request: method, path, accepted media type, and arguments for httpx."""

    method: str
    path: str
    accept: str = "application/json"
    arguments: dict[str, Any] | None = None

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments for httpx."""
        return {"headers": {"Accept": self.accept}, **(self.arguments or {})}


def wait_s(answer: httpx.Response) -> float:
    """Return the seconds after which a busy service wants to be asked again."""
    try:
        seconds = float(answer.headers.get("retry-after", DEFAULT_WAIT_S))
        return max(0.0, min(MAX_WAIT_S, seconds))
    except ValueError:
        return DEFAULT_WAIT_S


def checked(answer: httpx.Response) -> httpx.Response:
    """Return a successful response.

    Raises:
        ServiceError: it is an error.
    """
    if answer.is_success:
        return answer
    try:
        problem = answer.json()
    except ValueError:
        problem = {}
    raise ServiceError(answer.status_code, problem if isinstance(problem, dict) else {})


def base_url(url: str) -> str:
    """Return `url` with a scheme: `localhost:8000` means `http://localhost:8000`."""
    return url if "://" in url else f"http://{url}"


def match_call(image0: Source, image1: Source, options: dict[str, Any], accept: str) -> Call:
    """Make the request that matches two images."""
    files = {"image0": image_bytes(image0), "image1": image_bytes(image1)}
    return Call("POST", "/v1/match", accept, form(files, options))


def batch_call(
    images: Sequence[Source], pairs: Sequence[tuple[int, int]] | None, options: dict[str, Any]
) -> Call:
    """Make the request that matches pairs of images."""
    files = {f"image{n}": image_bytes(image) for n, image in enumerate(images)}
    if pairs is not None:
        options = {**options, "pairs": json.dumps([[int(i) for i in pair] for pair in pairs])}
    return Call("POST", "/v1/match/batch", MSGPACK, form(files, options))


def features_call(image: Source, options: dict[str, Any], accept: str = NPZ) -> Call:
    """Make the request that describes an image."""
    return Call("POST", "/v1/features", accept, form({"image": image_bytes(image)}, options))


def store_image_call(image: Source, options: dict[str, Any]) -> Call:
    """Make the request that describes an image and stores its features."""
    stored = {**options, "store": True, "descriptors": "none"}
    return features_call(image, stored, "application/json")


def store_call(features: Features) -> Call:
    """Make the request that stores features."""
    arguments = {"files": {"features": features_npz(features)}}
    return Call("POST", "/v1/features/stored", arguments=arguments)


def match_features_call(
    features0: Features | str, features1: Features | str, options: dict[str, Any]
) -> Call:
    """Make the request that matches features, given or stored."""
    files, named = {}, dict(options)
    for name, side in (("features0", features0), ("features1", features1)):
        if isinstance(side, str):
            named[f"{name}_id"] = side
        else:
            files[name] = features_npz(side)
    arguments = form(files, named)
    # Without a file, httpx would send the fields as a URL-encoded form.
    fields = {name: (None, text) for name, text in arguments["data"].items()}
    return Call("POST", "/v1/features/match", MSGPACK, {"files": {**arguments["files"], **fields}})


def patches_call(patches: UInt8, model: str | None) -> Call:
    """Make the request that describes patches.

    Raises:
        InvalidParameter: the array is not one of patches.
    """
    if patches.dtype != np.uint8 or patches.ndim not in (3, 4):
        raise InvalidParameter("patches must be uint8 arrays of shape (N, S, S) or (N, 1, S, S)")
    arguments = {
        "content": patches.tobytes(),
        "params": {"model": model or ""},
        "headers": {"Accept": NPZ, "Content-Type": "application/octet-stream"},
    }
    return Call("POST", "/v1/patches", NPZ, arguments)


def read_batch(answer: httpx.Response) -> list[ClientMatch | ServiceError]:
    """Return the result or the error of each pair."""
    results: list[ClientMatch | ServiceError] = []
    for item in unpack(answer.content)["results"]:
        problem = item["error"]
        if problem is None:
            results.append(match_from_fields(item["result"]))
        else:
            results.append(ServiceError(int(problem["status"]), problem))
    return results


def read_rows(answer: httpx.Response) -> NDArray[Any]:
    """Return the descriptors of patches."""
    with np.load(io.BytesIO(answer.content), allow_pickle=False) as arrays:
        return np.asarray(arrays["descriptors"])


def headers(api_key: str | None) -> dict[str, str]:
    """Return the headers of every request."""
    return {"X-API-Key": api_key} if api_key else {}
