"""The cache is bounded, and its keys are exact."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from matchserve.feature_cache import FeatureCache, content_key, features_bytes
from matchserve.types import Features, Keypoints


def features(count: int) -> Features:
    column = np.zeros(count, np.float32)
    keypoints = Keypoints(np.zeros((count, 2), np.float32), column, column, column)
    return Features(keypoints, np.zeros((count, 8), np.float32), "m", (64, 64))


@given(
    steps=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 40)), max_size=60),
    max_bytes=st.integers(0, 4000),
)
def test_the_cache_never_holds_more_than_its_bytes(
    steps: list[tuple[int, int]], max_bytes: int
) -> None:
    cache = FeatureCache(max_bytes)
    for key, count in steps:
        held = features(count)
        cache.put(key, held)
        assert cache.bytes_held <= max_bytes
        found = cache.get(key)
        assert found is held or features_bytes(held) > max_bytes
    assert cache.hits + cache.misses == len(steps)


def test_the_least_recently_used_goes_first() -> None:
    one = features(10)
    cache = FeatureCache(2 * features_bytes(one))
    cache.put("a", one)
    cache.put("b", one)
    assert cache.get("a") is not None
    cache.put("c", one)
    assert cache.get("b") is None
    assert cache.get("a") is not None


def test_keys_differ_by_content_and_by_options() -> None:
    assert content_key(b"a", 1) == content_key(b"a", 1)
    assert len({content_key(b"a", 1), content_key(b"b", 1), content_key(b"a", 2)}) == 3
