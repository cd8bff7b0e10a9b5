"""Features that clients store in the service, so that they send them once and then name them."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from matchserve.errors import InvalidParameter, UnknownFeatures
from matchserve.feature_cache import features_bytes
from matchserve.types import Features

_ENTRY_BYTES = 1000  # of an entry besides its arrays


@dataclass(slots=True)
class _Entry:
    features: Features
    size: int
    used_at: float


class FeatureStore:
    """Keeps features by owner and id, within a number of bytes and a time; safe for many threads.

    Entries that were not used for `keep_s` seconds are dropped. If all together would have more
    than `max_bytes`, the least recently used ones of the owner who has the most are dropped, so
    that nobody can push out the features of all others.
    """

    def __init__(
        self, max_bytes: int, keep_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_bytes = max_bytes
        self.keep_s = keep_s
        self._clock = clock
        # By owner, least recently used first.
        self._owners: dict[str, OrderedDict[str, _Entry]] = {}
        self._held: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def bytes_held(self) -> int:
        """Number of bytes of all stored features."""
        with self._lock:
            return sum(self._held.values())

    def put(self, owner: str, features: Features) -> str:
        """Store features and return their id, which is the same for the same features.

        Raises:
            InvalidParameter: this service stores none, or these are larger than the store.
        """
        size = features_bytes(features) + _ENTRY_BYTES
        if self.max_bytes == 0:
            raise InvalidParameter(
                "this service stores no features: MATCHSERVE_STORE_BYTES is 0, or there are "
                "several workers; send the features with each request"
            )
        if size > self.max_bytes:
            raise InvalidParameter(
                f"the features have {size} bytes, at most {self.max_bytes} can be stored",
                limit=self.max_bytes,
                value=size,
            )
        name = content_id(features)
        with self._lock:
            self._expire()
            self._remove(owner, name)
            self._owners.setdefault(owner, OrderedDict())[name] = _Entry(
                features, size, self._clock()
            )
            self._held[owner] = self._held.get(owner, 0) + size
            while sum(self._held.values()) > self.max_bytes:
                largest = max(self._held, key=lambda who: self._held[who])
                self._remove(largest, next(iter(self._owners[largest])))
        return name

    def get(self, owner: str, name: str) -> Features:
        """Return stored features, which counts as a use.

        Raises:
            UnknownFeatures: this owner has none of that id, or has them no longer.
        """
        with self._lock:
            self._expire()
            entry = self._owners.get(owner, OrderedDict()).get(name)
            if entry is None:
                raise UnknownFeatures(
                    f"no features {name[:12]}… are stored for you: they expired after "
                    f"{self.keep_s:g} s, made room for others, or were never stored; store them "
                    "again with POST /v1/features and store=true, or POST /v1/features/stored"
                )
            entry.used_at = self._clock()
            self._owners[owner].move_to_end(name)
            return entry.features

    def delete(self, owner: str, name: str) -> None:
        """Remove stored features.

        Raises:
            UnknownFeatures: this owner has none of that id.
        """
        self.get(owner, name)
        with self._lock:
            self._remove(owner, name)

    def _expire(self) -> None:
        oldest = self._clock() - self.keep_s
        for owner, entries in list(self._owners.items()):
            while entries and next(iter(entries.values())).used_at < oldest:
                self._remove(owner, next(iter(entries)))

    def _remove(self, owner: str, name: str) -> None:
        entries = self._owners.get(owner, OrderedDict())
        entry = entries.pop(name, None)
        if entry is not None:
            self._held[owner] -= entry.size
        if not entries:
            self._owners.pop(owner, None)
            self._held.pop(owner, None)


def content_id(features: Features) -> str:
    """Return a digest of the content as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    keypoints = features.keypoints
    about = (
        *(features.model, features.fingerprint, features.size, features.working_size),
        *(features.truncated, features.descriptors.shape, features.descriptors.dtype.str),
    )
    digest.update(repr(about).encode())
    for array in (keypoints.xy, keypoints.sigma, keypoints.angle, keypoints.score):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(np.ascontiguousarray(features.descriptors).tobytes())
    return digest.hexdigest()
