"""Pairs of patches to measure FPR95 on: official ones if the store has them, else random ones.

Stores of PhotoTour have the official list of pairs (`pairs.npy`: left, right, is it a match).
Random pairs are drawn in the same way for validation and benchmarks.

Half of the pairs match (two patches of one class). The others are patches of two different
classes; every second of those is drawn from one scene where possible, since look-alikes such as
repeated windows are found within a scene.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from matchserve.archives import read_npy
from matchserve.errors import InvalidParameter
from matchserve.files import write_whole
from matchserve.types import Bool, UInt8
from training.data.store.reader import Int64, PatchStore
from training.errors import DataError

PAIRS_FILE = "pairs.npy"
_BLOCK = 4096


@dataclass(frozen=True, slots=True, eq=False)
class PatchPairs:
    """Patch indices (M,) of the left and right patches, and whether each pair is a match."""

    left: Int64
    right: Int64
    is_match: Bool

    def __len__(self) -> int:
        return len(self.left)

    def unique(self) -> tuple[Int64, Int64, Int64]:
        """Return the sorted indices of all patches used, and the rows of left and right in them."""
        used, row = np.unique(np.concatenate([self.left, self.right]), return_inverse=True)
        return used, row[: len(self)], row[len(self) :]

    def describe(
        self,
        describe: Callable[[UInt8], NDArray[Any]],
        read_patches: Callable[[Int64], UInt8],
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the descriptors of the left and the right patches; each patch is described once.

        `read_patches` returns the uint8 patches (N, 1, S, S) of some indices; it is called for a
        few thousand at a time.
        """
        used, left, right = self.unique()
        blocks = [used[at : at + _BLOCK] for at in range(0, len(used), _BLOCK)]
        rows = np.concatenate([describe(read_patches(block)) for block in blocks])
        return rows[left], rows[right]


def write_official_pairs(directory: Path, pairs: PatchPairs) -> None:
    """Add the official list of pairs to a store; its indices are those of the store."""
    buffer = BytesIO()
    np.save(buffer, np.column_stack([pairs.left, pairs.right, pairs.is_match]).astype(np.int64))
    write_whole(directory / PAIRS_FILE, buffer.getvalue())


def read_official_pairs(store: PatchStore) -> PatchPairs | None:
    """Return the official pairs of `store`; None if it has none or is a view of some classes.

    Raises:
        DataError: the list is damaged.
    """
    path = store.path / PAIRS_FILE
    if not path.is_file() or len(store) != len(store.class_scenes):
        return None
    try:
        rows = read_npy(path)
        left, right, is_match = rows.T.astype(np.int64, casting="safe")
    except (InvalidParameter, ValueError, TypeError) as error:
        raise DataError(f"{path}: not a list of pairs: {error}") from error
    if len(rows) and not 0 <= rows[:, :2].min() <= rows[:, :2].max() < store.patch_count:
        raise DataError(f"{path}: names a patch that the store does not have")
    return PatchPairs(left, right, is_match.astype(bool))


def sample_pairs(store: PatchStore, count: int, seed: int = 0) -> PatchPairs:
    """Draw `count` pairs of patches of `store`; the same seed draws the same pairs.

    Raises:
        DataError: the store has fewer than two classes, or no class with two patches.
    """
    rng = np.random.default_rng(seed)
    sizes, starts = store.class_sizes, store.class_starts
    paired = np.flatnonzero(sizes >= 2)
    if len(store) < 2 or not len(paired):
        raise DataError(
            f"{store.path}: pairs need at least two classes, one of them with two patches"
        )
    half = count // 2
    chosen = paired[rng.integers(0, len(paired), half)]
    first = rng.integers(0, sizes[chosen])
    second = (first + rng.integers(1, sizes[chosen])) % sizes[chosen]
    one, other = _different_classes(store, count - half, rng)
    left = np.concatenate([starts[chosen] + first, starts[one] + rng.integers(0, sizes[one])])
    right = np.concatenate([starts[chosen] + second, starts[other] + rng.integers(0, sizes[other])])
    return PatchPairs(left, right, np.arange(count) < half)


def _different_classes(store: PatchStore, count: int, rng: Generator) -> tuple[Int64, Int64]:
    """Draw pairs of unequal classes, every second one within a scene where possible."""
    scenes = store.class_scenes[store.classes]
    order = np.argsort(scenes, kind="stable")
    first_of = np.searchsorted(scenes[order], scenes)
    count_of = np.searchsorted(scenes[order], scenes, side="right") - first_of
    one = rng.integers(0, len(store), count)
    inside = order[first_of[one] + rng.integers(0, count_of[one])]
    anywhere = rng.integers(0, len(store), count)
    other = np.where((np.arange(count) % 2 == 0) & (count_of[one] > 1), inside, anywhere)
    same = np.flatnonzero(other == one)
    other[same] = (one[same] + 1) % len(store)
    return one.astype(np.int64), other.astype(np.int64)
