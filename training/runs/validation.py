"""FPR95 of a descriptor on fixed random pairs of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from matchserve.types import Float32, UInt8
from training.data.store.pairs import LabelledPairs, sample_pairs
from training.data.store.reader import PatchStore
from training.metrics.patch_pairs import fpr95
from training.networks.layers import DescriptorNet

_BLOCK = 1024


@dataclass(frozen=True, slots=True, eq=False)
class ValidationSet:
    """Pairs of one store, their patches in memory."""

    name: str
    patches: UInt8
    pairs: LabelledPairs

    @classmethod
    def of(cls, store: PatchStore, pairs: int) -> ValidationSet:
        """Draw `pairs` pairs of `store`."""
        drawn = sample_pairs(store, pairs)
        return cls(store.path.name, drawn.patches(store), drawn)

    def distances(self, describe: Callable[[UInt8], NDArray[Any]]) -> NDArray[Any]:
        """Return the distance of each pair: Euclidean, or Hamming for packed bits."""
        left, right = np.split(describe(self.patches), 2)
        if left.dtype == np.uint8:
            bits: NDArray[Any] = np.unpackbits(left ^ right, axis=1).sum(1)
            return bits
        distances: NDArray[Any] = np.linalg.norm(left.astype(np.float32) - right, axis=1)
        return distances

    def fpr95(self, describe: Callable[[UInt8], NDArray[Any]]) -> float:
        """Return the false positive rate at 95 % recall."""
        return fpr95(self.distances(describe), self.pairs.labels)


def validation_sets(stores: Iterable[PatchStore], pairs: int) -> list[ValidationSet]:
    """Draw `pairs` pairs of each store; one of a name that was taken gets a number after it."""
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

    Rows of a linear head are left as they are: its distances are those of training.
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
    """Return FPR95 of the network on each set, by store name."""
    return {s.name: s.fpr95(lambda patches: describe(net, patches, device)) for s in sets}
