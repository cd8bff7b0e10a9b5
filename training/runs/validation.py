"""FPR95 of a network on fixed pairs of the validation stores: official ones, else random ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from matchserve.types import Bool, Float32, UInt8
from training.data.store.pairs import read_official_pairs, sample_pairs
from training.data.store.reader import Int64, PatchStore
from training.metrics.patch_pairs import fpr95, row_distance
from training.networks.layers import DescriptorNet

_BLOCK = 1024


@dataclass(frozen=True, slots=True, eq=False)
class ValidationSet:
    """Pairs of one store with their patches in memory.

    `patches` is uint8 (N, 1, S, S); `left` and `right` (M,) index it; `is_match` (M,) is the truth.
    """

    name: str
    patches: UInt8
    left: Int64
    right: Int64
    is_match: Bool

    @classmethod
    def of(cls, store: PatchStore, pairs: int) -> ValidationSet:
        """Take the official pairs of `store`, or draw `pairs` as the benchmark `pairs` does."""
        official = read_official_pairs(store)
        drawn = sample_pairs(store, pairs) if official is None else official
        used, left, right = drawn.unique()
        return cls(store.path.name, store.patches(used), left, right, drawn.is_match)

    def distances(self, describe: Callable[[UInt8], NDArray[Any]]) -> Float32:
        """Return the distance of each pair: Euclidean, or Hamming for packed bits."""
        rows = describe(self.patches)
        return row_distance(rows[self.left], rows[self.right])

    def fpr95(self, describe: Callable[[UInt8], NDArray[Any]]) -> float:
        """Return the false positive rate at 95 % recall, as a share of 1."""
        return fpr95(self.distances(describe), self.is_match)


def validation_sets(stores: Iterable[PatchStore], pairs: int) -> list[ValidationSet]:
    """Draw `pairs` pairs of each store; stores of the same name get a number appended."""
    sets: list[ValidationSet] = []
    taken: set[str] = set()
    for store in stores:
        drawn = ValidationSet.of(store, pairs)
        name, number = drawn.name, 2
        while name in taken:
            name, number = f"{drawn.name}-{number}", number + 1
        taken.add(name)
        sets.append(replace(drawn, name=name))
    return sets


@torch.no_grad()
def describe(net: DescriptorNet, patches: UInt8, device: torch.device) -> NDArray[Any]:
    """Describe uint8 patches as the exported model will: unit rows, packed bits, or raw rows.

    The rows of a linear head are not normalised: their distances are those of training.
    """
    was_training = net.training
    net.eval()
    blocks = [
        net(torch.from_numpy(patches[i : i + _BLOCK]).to(device)).float().cpu().numpy()
        for i in range(0, len(patches), _BLOCK)
    ]
    net.train(was_training)
    rows: Float32 = np.concatenate(blocks) if blocks else np.empty((0, net.dim), np.float32)
    return np.packbits(rows > 0, axis=1) if net.head == "binary" else rows


def validate(
    net: DescriptorNet, sets: Iterable[ValidationSet], device: torch.device
) -> dict[str, float]:
    """Return the FPR95 of the network on each set, by store name."""
    return {s.name: s.fpr95(lambda patches: describe(net, patches, device)) for s in sets}
