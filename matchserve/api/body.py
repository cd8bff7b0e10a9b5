"""A request's body, bounded before and while it is read, whatever it says of itself."""

from __future__ import annotations

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
    """Bytes that all bodies may hold together; on the event loop only."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held = 0

    def add(self, count: int) -> None:
        """Count bytes that are held from now on.

        Raises:
            Overloaded: together with the others they are too many.
        """
        if self.held + count > self.max_bytes:
            raise Overloaded(
                "too many bytes are being received; try again later",
                limit=self.max_bytes,
                value=self.held + count,
                retry_after_s=RETRY_S,
            )
        self.held += count


@asynccontextmanager
async def received(request: Request, max_bytes: int, budget: BodyBudget) -> AsyncIterator[bytes]:
    """The whole body, counted against `budget` until the block ends.

    Nothing here keeps it: a caller that has parsed it lets it go while its request waits.

    Raises:
        PayloadTooLarge: it is, or says it is, larger than `max_bytes`.
        UnsupportedMedia: it is compressed.
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMedia("compressed bodies are not read; send it as it is")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise too_large(int(length), max_bytes)
    chunks: list[bytes] = []
    held = 0
    try:
        async for chunk in request.stream():
            if held + len(chunk) > max_bytes:
                raise too_large(held + len(chunk), max_bytes)
            budget.add(len(chunk))
            held += len(chunk)
            chunks.append(chunk)
        yield _joined(chunks)
    except ClientDisconnect as error:
        raise ClientDeparted("the client closed the connection") from error
    finally:
        budget.held -= held


def _joined(chunks: list[bytes]) -> bytes:
    whole = b"".join(chunks)
    chunks.clear()
    return whole


def too_large(value: int, limit: int) -> PayloadTooLarge:
    """The error of a body or part of `value` bytes."""
    return PayloadTooLarge(f"{value} bytes were sent, at most {limit} are allowed",
                           limit=limit, value=value)  # fmt: skip


def media_type(request: Request, allowed: tuple[str, ...]) -> str:
    """The content type without its parameters.

    Raises:
        UnsupportedMedia: it is missing, or not one of `allowed`.
    """
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent not in allowed:
        raise UnsupportedMedia(f"the body must be {' or '.join(allowed)}")
    return sent


def boundary(request: Request) -> bytes:
    """The boundary of a multipart body.

    Raises:
        InvalidMultipart: there is none.
    """
    _, options = parse_options_header(request.headers.get("content-type"))
    if not options.get(b"boundary"):
        raise InvalidMultipart("the content type names no multipart boundary")
    return options[b"boundary"]
