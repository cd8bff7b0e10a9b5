"""How difficult the pairs of a store are, measured by the FPR95 of SIFT."""

from __future__ import annotations

from matchserve.models.descriptor import Descriptor
from matchserve.models.handcrafted import HandcraftedDescriptor
from training.data.store.pairs import PatchPairs, sample_pairs
from training.data.store.reader import PatchStore
from training.metrics.patch_pairs import fpr95, row_distance


def sift_fpr95(store: PatchStore, count: int = 20_000, seed: int = 0) -> float:
    """Return the FPR95 of SIFT on `count` random pairs of `store`, as a share of 1."""
    pairs = sample_pairs(store, count, seed)
    return pairs_fpr95(store, pairs, HandcraftedDescriptor("sift", patch=store.spec))


def pairs_fpr95(store: PatchStore, pairs: PatchPairs, descriptor: Descriptor) -> float:
    """Return the FPR95 of `descriptor` on `pairs`, as a share of 1."""
    left, right = pairs.describe(descriptor.describe_patches, store.patches)
    return fpr95(row_distance(left, right), pairs.is_match)
