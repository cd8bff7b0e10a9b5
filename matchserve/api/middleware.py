"""Wrap every request: add an id, a log line, counters and safe headers, and hide tracebacks."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from matchserve.api.errors import HeadersTooLarge, problem_response
from matchserve.api.logs import ACCESS
from matchserve.api.metrics import Metrics
from matchserve.clock import ClientDeparted
from matchserve.errors import MatchServeError, ShuttingDown

REQUEST_ID = re.compile(r"[A-Za-z0-9-]{1,64}")

MAX_HEADERS, MAX_HEADER_BYTES = 100, 32_768

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob: data:; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}

_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")

_access = logging.getLogger(ACCESS)
_log = logging.getLogger(__name__)


class RequestContext:
    """The outermost middleware; it sees every request and every response."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        exchange = _Exchange(scope, receive, send)
        try:
            await exchange.run(self.app)
        finally:
            status = exchange.status or ClientDeparted.status
            self._count(scope, status, time.perf_counter() - start)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        # Methods are the client's words: only the known ones become labels.
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self.metrics.requests.labels(route, method, str(status)).inc()
        self.metrics.duration.labels(route).observe(seconds)
        quiet = route in ("/healthz", "/readyz", "/metrics")
        fields: dict[str, Any] = {
            "request_id": scope["state"]["request_id"],
            "method": method,
            # Paths of collections have file names in them, which are the client's.
            "path": route if route.startswith("/v1/collections") else scope["path"][:200],
            "route": route,
            "status": status,
            "duration_ms": round(1e3 * seconds, 1),
            "code": scope["state"].get("problem", ""),
        }
        _access.log(logging.DEBUG if quiet else logging.INFO, "request", extra=fields)


class _Exchange:
    """One request and its response; `status` is 0 until the response begins."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.status = 0
        self._scope, self._receive, self._send = scope, receive, send
        self._request = Request(scope, receive)
        sent_id = self._request.headers.get("x-request-id", "")
        self._id = sent_id if REQUEST_ID.fullmatch(sent_id) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = self._id

    async def run(self, app: ASGIApp) -> None:
        """Serve the request; an error becomes a response if none has begun."""
        try:
            if _has_too_many_headers(self._scope):
                await self._refuse(HeadersTooLarge("the headers are too large"))
            else:
                await app(self._scope, self._receive, self._send_with_headers)
        except asyncio.CancelledError:
            # uvicorn cancels what still runs when the drain time is over, and would send a 500.
            if self.status:
                raise
            await self._refuse(ShuttingDown("the service is shutting down"))
        except Exception:
            _log.exception("unexpected error", extra={"request_id": self._id})
            if self.status:
                raise
            await self._refuse(MatchServeError("something went wrong here"))

    async def _send_with_headers(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            _complete(MutableHeaders(scope=message), self._id)
        await self._send(message)

    async def _refuse(self, error: MatchServeError) -> None:
        response = problem_response(error, self._request)
        await response(self._scope, self._receive, self._send_with_headers)


def _has_too_many_headers(scope: Scope) -> bool:
    """Check the headers: uvicorn bounds only those that come in pieces, not all at once."""
    headers = scope["headers"]
    size = sum(len(name) + len(value) for name, value in headers)
    return len(headers) > MAX_HEADERS or size > MAX_HEADER_BYTES


def _complete(headers: MutableHeaders, request_id: str) -> None:
    headers["X-Request-ID"] = request_id
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("Cache-Control", "no-store")
