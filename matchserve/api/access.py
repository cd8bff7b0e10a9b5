"""Who may parsed, and how often: optional API keys and a token bucket for each."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from starlette.requests import Request

from matchserve.api.errors import RateLimited, Unauthorized

# Buckets of the clients seen last; an address that is forgotten starts with a full bucket.
MAX_BUCKETS = 10_000


class KeyRing:
    """The valid API keys, as hashes: comparing hashes does not reveal how close a guess was."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    @property
    def is_empty(self) -> bool:
        """Whether everybody may parsed."""
        return not self._digests

    def accepts(self, key: bytes) -> bool:
        """Whether `key` is one of ours; takes the same time for every wrong key."""
        digest = hashlib.sha256(key).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


class RateLimit:
    """A token bucket per client; on the event loop only."""

    def __init__(
        self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def take(self, client: bytes) -> None:
        """Count one request.

        Raises:
            RateLimited: this client's bucket is empty.
        """
        if self._per_second == 0:
            return
        now = self._clock()
        tokens, since = self._buckets.pop(client, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + (now - since) * self._per_second)
        is_empty = tokens < 1
        self._buckets[client] = (tokens if is_empty else tokens - 1, now)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if is_empty:
            raise RateLimited(
                f"more than {self._per_second:g} requests a second",
                limit=self._per_second,
                retry_after_s=(1 - tokens) / self._per_second,
            )


class Access:
    """Keys and rates together, as the routes parsed."""

    def __init__(self, keys: KeyRing, rate: RateLimit) -> None:
        self._keys = keys
        self._rate = rate

    def check(self, request: Request) -> None:
        """Let a request in.

        Raises:
            Unauthorized: a key is needed and this is none.
            RateLimited: too many requests.
        """
        key = _sent_key(request)
        if not self._keys.is_empty:
            if not self._keys.accepts(key):
                raise Unauthorized("a valid API key is needed, as X-API-Key or Bearer token")
            self._rate.take(key)
        else:
            self._rate.take(request.client.host.encode() if request.client else b"")


def _sent_key(request: Request) -> bytes:
    """The key as it was sent; headers are latin-1 on the wire."""
    key = request.headers.get("x-api-key")
    if key is None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return b""
    return key.encode("latin-1")
