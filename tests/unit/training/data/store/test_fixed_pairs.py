from pathlib import Path

import numpy as np
import pytest

from training.data.store.fixed_pairs import draw_pairs, limit_pairs
from training.data.store.reader import PatchStore
from training.errors import DataError


def test_all_pairs_of_a_store_are_numbered(stores: list[PatchStore]) -> None:
    store = stores[0].select_classes(np.arange(len(stores[0])) < 5)
    expected = {
        (start + i, start + j)
        for start, size in zip(store.class_starts, store.class_sizes, strict=True)
        for j in range(size)
        for i in range(j)
    }
    left, right, number = draw_pairs(store, len(expected), seed=0)
    assert set(zip(left, right, strict=True)) == expected
    assert (store.class_starts[number] <= left).all()
    assert (right < store.class_starts[number] + store.class_sizes[number]).all()
    with pytest.raises(DataError, match=f"has {len(expected)} matching pairs, cannot take"):
        draw_pairs(store, len(expected) + 1, seed=0)


def test_the_store_of_pairs(stores: list[PatchStore], tmp_path: Path) -> None:
    source = stores[1].path
    made = limit_pairs(source, tmp_path / "pairs", count=60, seed=3, made_by="test")
    pairs = PatchStore.open(made)
    pairs.verify()
    assert (len(pairs), pairs.patch_count) == (30, 60)
    assert (pairs.class_sizes == 2).all()
    left, right, _ = draw_pairs(stores[1], 30, seed=3)
    expected = {stores[1].pixels[i].tobytes() + stores[1].pixels[j].tobytes()
                for i, j in zip(left, right, strict=True)}  # fmt: skip
    found = {pairs.pixels[i].tobytes() + pairs.pixels[i + 1].tobytes() for i in range(0, 60, 2)}
    assert found == expected
    again = limit_pairs(source, tmp_path / "again", count=60, seed=3, made_by="test")
    assert PatchStore.open(again).digest == pairs.digest
    other = limit_pairs(source, tmp_path / "other", count=60, seed=4, made_by="test")
    assert PatchStore.open(other).digest != pairs.digest
