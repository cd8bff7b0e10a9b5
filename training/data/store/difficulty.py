"""How hard the pairs of a store are, in the words of a descriptor everybody knows: SIFT's FPR95.

Half the pairs match (two patches of one class), half do not (patches of two classes); of the
latter half are of one scene, where look-alikes are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from matchserve.models.handcrafted import HandcraftedDescriptor
from matchserve.types import Bool
from training.data.store.reader import PatchStore
from training.errors import DataError
from training.metrics.patch_pairs import fpr95


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Pairs of patches of one store: indices (N,) of the left and right ones, and the truth."""

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    is_match: Bool


def sample_pairs(store: PatchStore, count: int, seed: int = 0) -> Pairs:
    """Draw `count` pairs, half of them matching, from the classes of `store`.

    Raises:
        DataError: there are not two classes, or none with two patches.
    """
    rng = np.random.default_rng(seed)
    sizes, starts = store.class_sizes, store.class_starts
    paired = np.flatnonzero(sizes >= 2)
    if len(store) < 2 or not len(paired):
        raise DataError(f"{store.path}: needs two classes, and two patches in one, to make pairs")
    half = count // 2
    chosen = paired[rng.integers(0, len(paired), half)]
    first = rng.integers(0, sizes[chosen])
    second = (first + rng.integers(1, sizes[chosen])) % sizes[chosen]
    one, other = _different_classes(store, count - half, rng)
    left = np.concatenate([starts[chosen] + first, starts[one] + rng.integers(0, sizes[one])])
    right = np.concatenate([starts[chosen] + second, starts[other] + rng.integers(0, sizes[other])])
    return Pairs(left, right, np.arange(count) < half)


def sift_fpr95(store: PatchStore, count: int = 20_000, seed: int = 0) -> float:
    """SIFT's FPR95 on `count` random pairs of `store`, as a share."""
    pairs = sample_pairs(store, count, seed)
    return pairs_fpr95(store, pairs, HandcraftedDescriptor("sift", patch=store.spec))


def pairs_fpr95(store: PatchStore, pairs: Pairs, descriptor: Any) -> float:
    """FPR95 of `descriptor` on `pairs`, each patch described once."""
    used, where = np.unique(np.concatenate([pairs.left, pairs.right]), return_inverse=True)
    rows = np.asarray(descriptor.describe_patches(store.patches(used)), np.float32)
    distance = np.linalg.norm(
        rows[where[: len(pairs.left)]] - rows[where[len(pairs.left) :]], axis=1
    )
    return fpr95(distance, pairs.is_match)


def _different_classes(
    store: PatchStore, count: int, rng: Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of positions of unequal classes, every second one of the same scene if possible."""
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
