"""Access control: optional API keys, a rate limit per client, and a limit of wrong keys."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from starlette.requests import Request

from matchserve.api.addresses import network_of
from matchserve.api.errors import RateLimited, Unauthorized

# The most recent clients are remembered; one that was forgotten starts with a full bucket.
MAX_BUCKETS = 10_000
WRONG_KEYS_PER_S, WRONG_KEYS_BURST = 1.0, 20
"""Rate of wrong keys from one address, and how many may come at once."""


class KeyRing:
    """The valid API keys, as hashes: comparing hashes does not reveal how close a guess was."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    @property
    def is_empty(self) -> bool:
        """Whether requests need no key."""
        return not self._digests

    def accepts(self, key: bytes) -> bool:
        """Return whether a key is valid; this takes the same time for every wrong key."""
        digest = hashlib.sha256(key).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


class RateLimit:
    """A token bucket per client; used on the event loop only."""

    def __init__(
        self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def check(self, client: bytes) -> None:
        """Raise an error if the client has no token left.

        Raises:
            RateLimited: the bucket of this client is empty.
        """
        tokens = self._tokens(client)
        if self._per_second and tokens < 1:
            raise RateLimited(
                f"more than {self._per_second:g} requests a second",
                limit=self._per_second,
                retry_after_s=(1 - tokens) / self._per_second,
            )

    def take(self, client: bytes) -> None:
        """Count one request.

        Raises:
            RateLimited: the bucket of this client is empty.
        """
        if self._per_second == 0:
            return
        self.check(client)
        tokens = self._tokens(client)
        self._buckets.pop(client, None)
        self._buckets[client] = (tokens - 1, self._clock())
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)

    def charge(self, client: bytes, count: int) -> None:
        """Take `count` tokens, even if that leaves a debt."""
        if self._per_second and count > 0:
            self._buckets[client] = (self._tokens(client) - count, self._clock())

    def _tokens(self, client: bytes) -> float:
        """Return the tokens in a client's bucket, which fills at a constant rate."""
        now = self._clock()
        tokens, since = self._buckets.get(client, (float(self._burst), now))
        return min(float(self._burst), tokens + (now - since) * self._per_second)


class Access:
    """Checks the key and the rate of each request; used on the event loop only."""

    def __init__(
        self, keys: KeyRing, rate: RateLimit, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keys = keys
        self._rate = rate
        self._wrong = RateLimit(WRONG_KEYS_PER_S, WRONG_KEYS_BURST, clock)
        self._known: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()

    def check(self, request: Request) -> None:
        """Let a request in.

        Raises:
            Unauthorized: a key is needed, and the request has no valid one.
            RateLimited: there are too many requests, or too many wrong keys.
        """
        address = _address(request)
        if self._keys.is_empty:
            self._rate.take(address)
            return
        key = _sent_key(request)
        self._check_key(address, key)
        self._rate.take(key)

    def owner(self, request: Request) -> str:
        """Return a name for the client of a checked request, which does not reveal its key."""
        if self._keys.is_empty:
            return "public"
        return hashlib.sha256(b"owner:" + _sent_key(request)).hexdigest()[:32]

    def client(self, request: Request) -> str:
        """Return a name for whoever sends a checked request: its owner, or its address."""
        return _address(request).decode() if self._keys.is_empty else self.owner(request)

    def charge(self, request: Request, count: int) -> None:
        """Count `count` more requests, even beyond the limit: later ones wait until it is paid."""
        address = _address(request)
        self._rate.charge(address if self._keys.is_empty else _sent_key(request), count)

    def _check_key(self, address: bytes, key: bytes) -> None:
        known = (address, hashlib.sha256(key).digest())
        if known not in self._known:
            # A key is not even compared while its address has sent too many wrong ones. Keys that
            # were accepted before from this address still are: others behind it are not locked out.
            self._wrong.check(address)
        if not self._keys.accepts(key):
            self._wrong.take(address)
            raise Unauthorized("a valid API key is needed, as X-API-Key or Bearer token")
        self._known[known] = None
        self._known.move_to_end(known)
        if len(self._known) > MAX_BUCKETS:
            self._known.popitem(last=False)


def _address(request: Request) -> bytes:
    """Return the address of the client as a key of limits."""
    return network_of(request.client.host if request.client else "").encode()


def _sent_key(request: Request) -> bytes:
    """Return the key as it was sent; headers are latin-1 on the wire."""
    key = request.headers.get("x-api-key")
    if key is None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return b""
    return key.encode("latin-1")
