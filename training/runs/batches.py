"""Batches: choose classes and patches, load and augment them, one step ahead of training."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matchserve.types import Bool, UInt8
from training.data.store.reader import Int64, PatchStore
from training.errors import DataError
from training.methods.samplers import Order
from training.runs.augment import AugmentOptions, apply_changes, draw_changes
from training.runtime import distributed
from training.runtime.randomness import Stream, numpy_stream

T = TypeVar("T")
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """Patch indices (N, K) of N classes, the store of each class, and which patches are copies."""

    members: Int64
    store: Int64
    copies: Bool


@dataclass(slots=True, eq=False)
class Batches:
    """The batches of a run, which depend only on (seed, step).

    `shares` is the number of pairs from each store, `candidates` the number of patches of each
    class. `order` and `neighbours` are those of `SamplerOptions`.
    """

    stores: Sequence[PatchStore]
    shares: Sequence[int]
    seed: int
    candidates: int
    order: Order
    augmentation: AugmentOptions
    copy_rotation_deg: float = 0.0
    neighbours: int = 64
    # The epoch and shuffled classes of each store: recomputed when needed, so nothing to save.
    _shuffles: dict[int, tuple[int, Int64]] = field(default_factory=dict)
    # The classes of each store sorted by image, and the index at which each image begins.
    _by_image: dict[int, tuple[Int64, Int64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stores = [s.select_classes(s.class_sizes >= 2) for s in self.stores]
        for store, share in zip(self.stores, self.shares, strict=True):
            if len(store) < share:
                raise DataError(
                    f"{store.path}: a batch needs at least {share} classes with two or more "
                    f"patches, found {len(store)}"
                )

    def draw(self, step: int) -> Draw:
        """Choose different classes, and `candidates` patches of each."""
        rng = numpy_stream(self.seed, step, Stream.CLASSES)
        parts = []
        for number, (store, share) in enumerate(zip(self.stores, self.shares, strict=True)):
            rows = self._classes(number, store, share, step, rng)
            picked, copies = pick_members(store.class_sizes[rows], self.candidates, rng)
            members = store.class_starts[rows][:, None] + picked
            parts.append((members, np.full(share, number, np.int64), copies))
        members, numbers, copied = (np.concatenate(p) for p in zip(*parts, strict=True))
        return Draw(members, numbers, copied)

    def prepare(self, step: int, device: torch.device = CPU) -> Tensor:
        """Load and augment this process's part of the batch, float32 (n, K, 1, S, S).

        On a GPU the patches are moved as bytes and changed there.
        """
        draw = self.draw(step)
        rows, count = draw.members.shape
        own = distributed.own_slice(rows)
        changes = draw_changes(
            (rows, count, self.stores[0].spec.size),
            self.augmentation,
            numpy_stream(self.seed, step, Stream.AUGMENT),
            own=own,
            copies=draw.copies,
            copy_rotation_deg=self.copy_rotation_deg,
        )
        patches = torch.from_numpy(self._load(draw.members[own], draw.store[own]))
        if device.type == "cuda":
            # From page-locked memory the copy runs while the host goes on.
            patches = patches.pin_memory().to(device, non_blocking=True)
        return apply_changes(patches, changes)

    def _load(self, members: Int64, numbers: Int64) -> UInt8:
        """Load the patches `members` (n, K) of the stores `numbers` (n,)."""
        side = self.stores[0].spec.size
        patches = np.empty((*members.shape, side, side), np.uint8)
        for number, store in enumerate(self.stores):
            rows = numbers == number
            loaded = store.patches(members[rows])
            patches[rows] = loaded.reshape(-1, self.candidates, side, side)
        return patches

    def _classes(
        self, number: int, store: PatchStore, share: int, step: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        if self.order == "replacement":
            return rng.choice(len(store), share, replace=False)
        if self.order == "neighbours":
            return self._neighbours(number, store, share, rng)
        if self.order == "mixed":
            near = self._neighbours(number, store, share // 2, rng)
            # Draw a whole share, because some of these classes may already be in `near`.
            far = rng.choice(len(store), share, replace=False)
            far = far[~np.isin(far, near)][: share - len(near)]
            return np.concatenate([near, far])
        per_epoch = len(store) // share
        epoch, place = divmod(step, per_epoch)
        shuffled = self._shuffles.get(number)
        if shuffled is None or shuffled[0] != epoch:
            shuffler = np.random.default_rng([self.seed, epoch, int(Stream.EPOCH), number])
            shuffled = (epoch, shuffler.permutation(len(store)).astype(np.int64))
            self._shuffles[number] = shuffled
        return shuffled[1][place * share : (place + 1) * share]

    def _neighbours(
        self, number: int, store: PatchStore, share: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Draw images, more likely those with more classes, and up to `neighbours` classes of each.

        A class belongs to the image of its first patch. No image is drawn twice.
        """
        if number not in self._by_image:
            image = store.sources[store.class_starts]
            ordered = np.argsort(image, kind="stable")
            starts = np.flatnonzero(np.diff(image[ordered], prepend=-1))
            self._by_image[number] = (ordered, np.append(starts, len(ordered)))
        ordered, bounds = self._by_image[number]
        sizes = np.diff(bounds)
        # Weighted sampling without replacement (Efraimidis and Spirakis, 2006).
        images = np.argsort(rng.exponential(size=len(sizes)) / sizes)
        drawn: list[NDArray[np.int64]] = []
        missing = share
        for image_number in images:
            size = int(sizes[image_number])
            taken = min(self.neighbours, size, missing)
            drawn.append(bounds[image_number] + rng.choice(size, taken, replace=False))
            missing -= taken
            if not missing:
                return np.asarray(ordered[np.concatenate(drawn)])
        rest = np.setdiff1d(np.arange(len(ordered)), np.concatenate(drawn))
        rows = np.concatenate([*drawn, rng.choice(rest, missing, replace=False)])
        return np.asarray(ordered[rows])


def pick_members(
    sizes: Int64, candidates: int, rng: np.random.Generator
) -> tuple[Int64, NDArray[np.bool_]]:
    """Pick `candidates` different members of each class in random order, (N, K).

    Classes with fewer members repeat some at random; the second result flags these copies.
    """
    widest = max(int(sizes.max()), candidates)
    keys = rng.random((len(sizes), widest))
    keys[np.arange(widest) >= sizes[:, None]] = 2.0
    order = np.argsort(keys, axis=1)[:, :candidates]
    copies = np.arange(candidates) >= sizes[:, None]
    repeated = rng.integers(0, sizes[:, None], order.shape)
    return np.where(copies, repeated, order).astype(np.int64), copies


def split_batch(weights: Sequence[float], batch: int) -> list[int]:
    """Divide `batch` in proportion to `weights`, by the largest remainder method."""
    exact = np.array(weights) / sum(weights) * batch
    shares = np.floor(exact).astype(int)
    for index in np.argsort(shares - exact, kind="stable")[: batch - int(shares.sum())]:
        shares[index] += 1
    return [int(s) for s in shares]


def ahead(
    prepare: Callable[[int], T], first: int, last: int, *, workers: int = 1
) -> Iterator[tuple[int, T, float]]:
    """Yield (step, prepared batch, seconds waited) in order, preparing later steps meanwhile.

    Each of `workers` threads prepares one step.
    """
    if first >= last:
        return
    with ThreadPoolExecutor(workers) as pool:
        pending = deque(pool.submit(prepare, s) for s in range(first, min(first + workers, last)))
        for step in range(first, last):
            start = time.perf_counter()
            ready = pending.popleft().result()
            waited = time.perf_counter() - start
            if step + workers < last:
                pending.append(pool.submit(prepare, step + workers))
            yield step, ready, waited
