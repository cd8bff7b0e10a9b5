"""A cache of features by image content, so that the same image is not described twice."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from matchserve.types import Features


class FeatureCache:
    """Keeps the most recently used features within a number of bytes; safe for many threads."""

    def __init__(
        self, max_bytes: int, on_lookup: Callable[[bool], None] = lambda _is_hit: None
    ) -> None:
        self.max_bytes = max_bytes
        self._on_lookup = on_lookup
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[Hashable, Features] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def bytes_held(self) -> int:
        """Number of bytes of all cached features."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Features | None:
        """Return the features stored under `key` and mark them as most recently used."""
        with self._lock:
            features = self._entries.get(key)
            if features is None:
                self.misses += 1
            else:
                self.hits += 1
                self._entries.move_to_end(key)
        self._on_lookup(features is not None)
        return features

    def put(self, key: Hashable, features: Features) -> None:
        """Store features and remove the least recently used ones until all fit."""
        size = features_bytes(features)
        if size > self.max_bytes:
            return
        with self._lock:
            replaced = self._entries.pop(key, None)
            if replaced is not None:
                self._bytes -= features_bytes(replaced)
            self._entries[key] = features
            self._bytes += size
            while self._bytes > self.max_bytes:
                _, oldest = self._entries.popitem(last=False)
                self._bytes -= features_bytes(oldest)


def features_bytes(features: Features) -> int:
    """Return the number of bytes of the arrays of one described image."""
    keypoints = features.keypoints
    arrays = (keypoints.xy, keypoints.sigma, keypoints.angle, keypoints.score, features.descriptors)
    return sum(array.nbytes for array in arrays)


def content_key(data: bytes | bytearray | memoryview, *rest: Hashable) -> Hashable:
    """Return a key that is equal only for equal bytes and equal options."""
    return (hashlib.sha256(data).digest(), *rest)
