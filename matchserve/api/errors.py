"""Every error as RFC 9457 problem+json: a stable code, what was asked and what is allowed."""

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
    """The body is not the multipart form it says it is."""

    code = "invalid_multipart"


class UnsupportedMedia(RequestError):
    """A content type or content encoding that is not read here."""

    code, status = "unsupported_media", 415


class NotAcceptable(RequestError):
    """No content type of the Accept header is written here."""

    code, status = "not_acceptable", 406


class MissingImage(RequestError):
    """An image that the request needs was not sent."""

    code, status = "missing_image", 422


class HeadersTooLarge(RequestError):
    """More or longer headers than anybody needs."""

    code, status = "headers_too_large", 431


class Unauthorized(RequestError):
    """No API key, or not one of ours."""

    code, status = "unauthorized", 401


class RateLimited(CapacityError):
    """This key asks more often than it may."""

    code, status = "rate_limited", 429


def invalid_parameter(error: pydantic.ValidationError) -> InvalidParameter:
    """The first thing that a schema finds wrong, in words, with the limit and the value."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])[:MAX_ECHO] or "the body"
    bounds = first.get("ctx", {})
    limit = next((bounds[k] for k in ("le", "lt", "ge", "gt", "max_length") if k in bounds), None)
    given = first.get("input")
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    value = float(given) if is_number and abs(given) < 1e300 else None
    return InvalidParameter(f"{where}: {first['msg'][:MAX_ECHO]}", limit=limit, value=value)


def problem_fields(error: MatchServeError, request_id: str) -> dict[str, Any]:
    """The body of a problem."""
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
    """An error as this route's clients expect it: problem+json, or Triton's shape under /v2."""
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
    """The framework's own errors (no such route, wrong method) in our shape."""
    phrase = HTTPStatus(error.status_code).phrase
    problem = MatchServeError(f"{phrase}.")
    code = "invalid_request" if error.status_code == 400 else phrase.lower().replace(" ", "_")
    problem.__dict__.update(code=code, status=error.status_code, headers=error.headers or {})
    return problem


def _json(
    body: dict[str, Any], status: int, headers: Mapping[str, str], media_type: str
) -> Response:
    return Response(orjson.dumps(body), status, headers, media_type)
