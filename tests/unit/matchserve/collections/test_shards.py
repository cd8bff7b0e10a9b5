from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from matchserve.collections.shards import MAX_PAIRS, divide, shard_id
from matchserve.matcher import Options


def all_pairs(count: int) -> np.ndarray:
    return np.stack(np.triu_indices(count, 1), axis=1).astype(np.int64)


@pytest.mark.parametrize("count", [2, 6, 30, 200])
def test_every_pair_is_in_one_shard(count: int) -> None:
    pairs = all_pairs(count)
    shards = divide(pairs)
    assert max(map(len, shards)) <= MAX_PAIRS
    assert sorted(map(tuple, np.concatenate(shards).tolist())) == list(map(tuple, pairs.tolist()))


def test_the_division_does_not_depend_on_the_order() -> None:
    pairs = all_pairs(90)
    shuffled = np.random.default_rng(0).permutation(pairs)
    for first, second in zip(divide(pairs), divide(shuffled), strict=True):
        assert np.array_equal(first, second)


def test_shards_touch_few_images() -> None:
    touched = [len(np.unique(shard)) for shard in divide(all_pairs(500))]
    assert max(touched) <= 130
    assert not divide(np.zeros((0, 2), np.int64))


def test_the_name_depends_on_all_that_the_result_depends_on() -> None:
    options = Options()
    name = shard_id([("a", "b")], options)
    assert name == shard_id([("a", "b")], Options())
    verify = replace(options.verify, threshold_px=2.0)
    others = [
        shard_id([("b", "a")], options),
        shard_id([("a", "b"), ("a", "c")], options),
        shard_id([("a", "b")], replace(options, verify=verify)),
    ]
    assert len({name, *others}) == 4
