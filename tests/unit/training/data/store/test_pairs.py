import numpy as np
import pytest

from training.data.store.pairs import PatchPairs, sample_pairs
from training.data.store.reader import PatchStore
from training.errors import DataError


def test_a_seed_draws_the_same_pairs_again(stores: list[PatchStore]) -> None:
    pairs = sample_pairs(stores[0], 401)
    again = sample_pairs(stores[0], 401)
    assert pairs.left.tolist() == again.left.tolist()
    assert pairs.left.tolist() != sample_pairs(stores[0], 401, seed=1).left.tolist()
    assert int(pairs.is_match.sum()) == 200
    left, right = (
        np.searchsorted(stores[0].offsets, x, "right") for x in (pairs.left, pairs.right)
    )
    np.testing.assert_array_equal(left == right, pairs.is_match)
    assert (pairs.left != pairs.right).all()


def test_a_store_of_one_class_has_no_pairs(stores: list[PatchStore]) -> None:
    single = stores[0].select_classes(np.arange(150) < 1)
    with pytest.raises(DataError, match="two classes"):
        sample_pairs(single, 10)


def test_each_patch_is_described_once() -> None:
    pairs = PatchPairs(np.array([7, 3, 7]), np.array([3, 9000, 8]), np.ones(3, bool))
    seen: list[int] = []

    def read(indices: np.ndarray) -> np.ndarray:
        seen.extend(indices.tolist())
        return indices

    left, right = pairs.describe(lambda patches: 10 * patches, read)
    assert seen == [3, 7, 8, 9000]
    assert left.tolist() == [70, 30, 70]
    assert right.tolist() == [30, 90000, 80]
