"""Fixed random pairs of a store, to measure a descriptor on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matchserve.types import Bool, UInt8
from training.data.store.reader import PatchStore
from training.errors import DataError

_SEED = 9500


@dataclass(frozen=True, slots=True, eq=False)
class LabelledPairs:
    """Patch indices of M pairs, and whether each is a match; half are."""

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    labels: Bool

    def patches(self, store: PatchStore) -> UInt8:
        """Return left then right patches, uint8 (2M, 1, S, S)."""
        return store.patches(np.concatenate([self.left, self.right]))


def sample_pairs(store: PatchStore, count: int) -> LabelledPairs:
    """Draw `count` pairs, half matching, the same ones each time for the same store.

    Raises:
        DataError: there are fewer than two classes with two patches.
    """
    rng = np.random.default_rng(_SEED)
    usable = store.select_classes(store.class_sizes >= 2)
    if len(usable) < 2:
        raise DataError(f"{store.path}: expected at least two classes with two patches each")
    half = count // 2
    starts, sizes = usable.class_starts, usable.class_sizes
    chosen = rng.integers(0, len(usable), half)
    first = rng.integers(0, sizes[chosen])
    second = (first + rng.integers(1, sizes[chosen])) % sizes[chosen]
    one = rng.integers(0, len(usable), count - half)
    other = (one + rng.integers(1, len(usable), count - half)) % len(usable)
    return LabelledPairs(
        left=np.concatenate([starts[chosen] + first, starts[one] + rng.integers(0, sizes[one])]),
        right=np.concatenate(
            [starts[chosen] + second, starts[other] + rng.integers(0, sizes[other])]
        ),
        labels=np.arange(count) < half,
    )
