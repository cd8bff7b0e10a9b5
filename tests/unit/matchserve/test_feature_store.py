"""Features stored by owner and id."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from matchserve.errors import InvalidParameter, UnknownFeatures
from matchserve.feature_store import FeatureStore, content_id
from matchserve.types import Features, Keypoints

EVERYBODY = "public"


def features(seed: int, count: int = 10) -> Features:
    random = np.random.default_rng(seed)
    keypoints = Keypoints(
        random.random((count, 2), np.float32), *(np.ones(count, np.float32) for _ in range(3))
    )
    return Features(keypoints, random.random((count, 8), np.float32), "tiny", (100, 100))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_equal_features_have_one_id_and_others_another() -> None:
    store = FeatureStore(1_000_000, 60)
    name = store.put(EVERYBODY, features(0))
    assert store.put(EVERYBODY, features(0)) == name
    held = store.bytes_held
    assert store.put(EVERYBODY, features(1)) != name
    assert store.bytes_held == 2 * held
    assert content_id(dataclasses.replace(features(0), model="other")) != name
    np.testing.assert_array_equal(store.get(EVERYBODY, name).descriptors, features(0).descriptors)


def test_another_owner_does_not_see_them() -> None:
    store = FeatureStore(1_000_000, 60)
    name = store.put("one", features(0))
    with pytest.raises(UnknownFeatures, match="store them again"):
        store.get("two", name)
    with pytest.raises(UnknownFeatures):
        store.delete("two", name)
    store.delete("one", name)
    assert store.bytes_held == 0
    with pytest.raises(UnknownFeatures):
        store.get("one", name)


def test_unused_features_expire_and_used_ones_stay() -> None:
    clock = Clock()
    store = FeatureStore(1_000_000, 60, clock)
    unused, used = store.put(EVERYBODY, features(0)), store.put(EVERYBODY, features(1))
    clock.now = 40
    store.get(EVERYBODY, used)
    clock.now = 80
    store.get(EVERYBODY, used)
    with pytest.raises(UnknownFeatures):
        store.get(EVERYBODY, unused)


def test_one_owner_cannot_push_out_the_others() -> None:
    size = 1480  # of one entry, see below
    store = FeatureStore(10 * size, 60)
    modest = [store.put("modest", features(n)) for n in range(2)]
    greedy = [store.put("greedy", features(100 + n)) for n in range(50)]
    assert store.bytes_held <= 10 * size
    assert all(store.get("modest", name) for name in modest)
    assert store.get("greedy", greedy[-1])
    with pytest.raises(UnknownFeatures):
        store.get("greedy", greedy[0])


def test_what_cannot_be_stored_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="stores no features"):
        FeatureStore(0, 60).put(EVERYBODY, features(0))
    with pytest.raises(InvalidParameter, match="at most 2000 can be stored"):
        FeatureStore(2000, 60).put(EVERYBODY, features(0, 100))
