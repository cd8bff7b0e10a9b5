"""Receive a request's body, bounded before and while it is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request

from matchserve.api.errors import InvalidMultipart, UnsupportedMedia
from matchserve.clock import ClientDeparted
from matchserve.errors import Overloaded, PayloadTooLarge

JSON = "application/json"
MULTIPART = "multipart/form-data"
OCTETS = "application/octet-stream"

RETRY_S = 1


class BodyBudget:
    """Maximum size of all bodies that are held at the same time; used on the event loop only."""

    def __init__(self, max_bytes: int, max_client_bytes: int | None = None) -> None:
        """Set the maximum of all bodies, and that of the bodies of one client, if it is less."""
        self.max_bytes = max_bytes
        self.max_client_bytes = max_bytes if max_client_bytes is None else max_client_bytes
        self._clients: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Size of all bodies that are held now."""
        return self._clients.total()

    def add(self, count: int, client: str = "") -> None:
        """Count received bytes of a client, which must be released at the end.

        Raises:
            Overloaded: all bodies together, or those of this client, would be too large.
        """
        for held, limit in (
            (self.held, self.max_bytes),
            (self._clients[client], self.max_client_bytes),
        ):
            if held + count > limit:
                raise Overloaded(
                    "too many bytes are being received; try again later",
                    limit=limit,
                    value=held + count,
                    retry_after_s=RETRY_S,
                )
        self._clients[client] += count

    def release(self, count: int, client: str = "") -> None:
        """Count bytes of a client that are no longer held."""
        self._clients[client] -= count
        if not self._clients[client]:
            del self._clients[client]


@asynccontextmanager
async def received(
    request: Request, max_bytes: int, budget: BodyBudget, client: str = ""
) -> AsyncIterator[bytearray]:
    """Receive a whole body, which counts against `budget` until the block ends, as of `client`.

    Nothing here keeps the body: a caller that has parsed it drops it while its request waits.

    Raises:
        PayloadTooLarge: the body is, or claims to be, larger than `max_bytes`.
        UnsupportedMedia: the body is compressed.
        Overloaded: all bodies together are too large.
        ClientDeparted: the client closed the connection.
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMedia("compressed bodies are not supported; send the body as it is")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise too_large(int(length), max_bytes)
    # It grows chunk by chunk: joining 42 MB at the end would block the event loop.
    body = bytearray()
    held = 0
    try:
        async for chunk in request.stream():
            if held + len(chunk) > max_bytes:
                raise too_large(held + len(chunk), max_bytes)
            budget.add(len(chunk), client)
            held += len(chunk)
            body += chunk
        # The caller must get the only reference, and a local variable would be a second one.
        complete = [body]
        del body
        yield complete.pop()
    except ClientDisconnect as error:
        raise ClientDeparted("the client closed the connection") from error
    finally:
        budget.release(held, client)


def too_large(value: int, limit: int) -> PayloadTooLarge:
    """Return the error for a body or part of `value` bytes."""
    return PayloadTooLarge(f"{value} bytes were sent, at most {limit} are allowed",
                           limit=limit, value=value)  # fmt: skip


def media_type(request: Request, allowed: tuple[str, ...]) -> str:
    """Return the content type without its parameters.

    Raises:
        UnsupportedMedia: the content type is missing, or not one of `allowed`.
    """
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent not in allowed:
        raise UnsupportedMedia(f"the body must be {' or '.join(allowed)}")
    return sent


def boundary(request: Request) -> bytes:
    """Return the boundary of a multipart body.

    Raises:
        InvalidMultipart: the content type names no boundary.
    """
    _, options = parse_options_header(request.headers.get("content-type"))
    if not options.get(b"boundary"):
        raise InvalidMultipart("the content type names no multipart boundary")
    return options[b"boundary"]
