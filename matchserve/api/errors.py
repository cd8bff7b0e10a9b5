"""Turn errors into problem+json responses (RFC 9457), with a stable code and the limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
import pydantic
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from matchserve.errors import CapacityError, InvalidParameter, MatchServeError, RequestError

PROBLEM = "application/problem+json"
MAX_ECHO = 200


class InvalidJson(RequestError):
    """The body is not JSON."""

    code = "invalid_json"


class InvalidMultipart(RequestError):
    """The body is not a valid multipart form."""

    code = "invalid_multipart"


class UnsupportedMedia(RequestError):
    """The content type or content encoding of the body is not supported."""

    code, status = "unsupported_media", 415


class NotAcceptable(RequestError):
    """No content type of the Accept header is supported."""

    code, status = "not_acceptable", 406


class MissingImage(RequestError):
    """A required image is missing."""

    code, status = "missing_image", 422


class HeadersTooLarge(RequestError):
    """The request has too many headers, or headers that are too long."""

    code, status = "headers_too_large", 431


class Unauthorized(RequestError):
    """The API key is missing or not valid."""

    code, status = "unauthorized", 401


class RateLimited(CapacityError):
    """The client sends more requests than its rate limit allows."""

    code, status = "rate_limited", 429


def invalid_parameter(error: pydantic.ValidationError) -> InvalidParameter:
    """Return the first error of a validation, with the limit and the value if they are numbers."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])[:MAX_ECHO] or "the body"
    bounds = first.get("ctx", {})
    limit = next((bounds[k] for k in ("le", "lt", "ge", "gt", "max_length") if k in bounds), None)
    given = first.get("input")
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    value = float(given) if is_number and abs(given) < 1e300 else None
    return InvalidParameter(f"{where}: {first['msg'][:MAX_ECHO]}", limit=limit, value=value)


def problem_fields(error: MatchServeError, request_id: str) -> dict[str, Any]:
    """Return the fields of a problem+json body."""
    fields: dict[str, Any] = {
        "type": f"urn:matchserve:problem:{error.code}",
        "title": error.code.replace("_", " ").capitalize(),
        "status": error.status,
        "code": error.code,
        "detail": error.message,
        "request_id": request_id,
    }
    for name in ("limit", "value"):
        number = getattr(error, name)
        if number is not None and math.isfinite(number):
            fields[name] = number
    return fields


def problem_response(error: MatchServeError, request: Request) -> Response:
    """Return an error as problem+json, or below /v2 as the Open Inference Protocol wants it."""
    request_id = request.scope.get("state", {}).get("request_id", "")
    headers = dict(getattr(error, "headers", {}))
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if request.url.path.startswith("/v2/"):
        body = {"error": f"{error.code}: {error.message}"}
        return _json(body, error.status, headers, "application/json")
    return _json(problem_fields(error, request_id), error.status, headers, PROBLEM)


def from_http_exception(error: HTTPException) -> MatchServeError:
    """Convert an error of the framework, such as an unknown route or a wrong method."""
    phrase = HTTPStatus(error.status_code).phrase
    problem = MatchServeError(f"{phrase}.")
    code = "invalid_request" if error.status_code == 400 else phrase.lower().replace(" ", "_")
    problem.__dict__.update(code=code, status=error.status_code, headers=error.headers or {})
    return problem


def _json(
    body: dict[str, Any], status: int, headers: Mapping[str, str], media_type: str
) -> Response:
    return Response(orjson.dumps(body), status, headers, media_type)
