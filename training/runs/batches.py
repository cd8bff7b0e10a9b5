"""From stores to batches: which classes and patches, loaded and augmented, one step ahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from matchserve.types import Bool, UInt8
from training.data.store.reader import Int64, PatchStore
from training.errors import DataError
from training.methods.samplers import Order
from training.runs.augment import AugmentOptions, augment
from training.runtime import distributed
from training.runtime.randomness import Stream, numpy_stream

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """Patch indices (N, K) of N classes, the store of each row, and which are made by turning."""

    members: Int64
    store: Int64
    copies: Bool


@dataclass(slots=True, eq=False)
class Batches:
    """The batches of a run: a function of (seed, step).

    `shares` are the pairs taken from each store; `candidates` the patches of each class.
    """

    stores: Sequence[PatchStore]
    shares: Sequence[int]
    seed: int
    candidates: int
    order: Order
    augmentation: AugmentOptions
    max_turn_deg: float = 0.0
    neighbours: int = 64
    # The last shuffle of each store: recomputed when the epoch changes, so nothing to save.
    _shuffles: dict[int, tuple[int, Int64]] = field(default_factory=dict)
    # The classes of each store in the order of their images, and where each image begins.
    _by_image: dict[int, tuple[Int64, Int64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stores = [s.select_classes(s.class_sizes >= 2) for s in self.stores]
        for store, share in zip(self.stores, self.shares, strict=True):
            if len(store) < share:
                raise DataError(
                    f"{store.path}: expected at least {share} classes of two patches or more "
                    f"for a batch, found {len(store)}"
                )

    def draw(self, step: int) -> Draw:
        """Choose classes, all different, and `candidates` patches of each."""
        rng = numpy_stream(self.seed, step, Stream.CLASSES)
        parts = []
        for number, (store, share) in enumerate(zip(self.stores, self.shares, strict=True)):
            rows = self._classes(number, store, share, step, rng)
            picked, copies = pick_members(store.class_sizes[rows], self.candidates, rng)
            members = store.class_starts[rows][:, None] + picked
            parts.append((members, np.full(share, number, np.int64), copies))
        members, numbers, copied = (np.concatenate(p) for p in zip(*parts, strict=True))
        return Draw(members, numbers, copied)

    def prepare(self, step: int) -> Tensor:
        """Load and augment this rank's rows of the batch, float32 (n, K, 1, S, S)."""
        draw = self.draw(step)
        patches = self._load(draw)
        rng = numpy_stream(self.seed, step, Stream.AUGMENT)
        whole = augment(
            patches, self.augmentation, rng, turned=draw.copies, max_turn_deg=self.max_turn_deg
        )
        # Every rank augments the whole batch: the draws are then those of a single process.
        return whole[distributed.own_slice(len(whole))]

    def _load(self, draw: Draw) -> UInt8:
        side = self.stores[0].spec.size
        patches = np.empty((*draw.members.shape, side, side), np.uint8)
        for number, store in enumerate(self.stores):
            rows = draw.store == number
            loaded = store.patches(draw.members[rows])
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
            # As many as the whole share: what `near` has already leaves enough of them.
            far = rng.choice(len(store), share, replace=False)
            far = far[~np.isin(far, near)][: share - len(near)]
            return np.concatenate([near, far])
        per_epoch = len(store) // share
        epoch, place = divmod(step, per_epoch)
        known = self._shuffles.get(number)
        if known is None or known[0] != epoch:
            shuffler = np.random.default_rng([self.seed, epoch, int(Stream.EPOCH), number])
            known = (epoch, shuffler.permutation(len(store)).astype(np.int64))
            self._shuffles[number] = known
        return known[1][place * share : (place + 1) * share]

    def _neighbours(
        self, number: int, store: PatchStore, share: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Draw images by the number of their classes, then up to `neighbours` classes of each.

        An image is that of a class's first patch. Images come without repetition until the batch
        is full.
        """
        if number not in self._by_image:
            image = store.sources[store.class_starts]
            ordered = np.argsort(image, kind="stable")
            starts = np.flatnonzero(np.diff(image[ordered], prepend=-1))
            self._by_image[number] = (ordered, np.append(starts, len(ordered)))
        ordered, bounds = self._by_image[number]
        sizes = np.diff(bounds)
        # The order in which images would be drawn one by one, without putting back.
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

    Classes that are too small repeat members at random; those places are flagged.
    """
    widest = max(int(sizes.max()), candidates)
    keys = rng.random((len(sizes), widest))
    keys[np.arange(widest) >= sizes[:, None]] = 2.0
    order = np.argsort(keys, axis=1)[:, :candidates]
    copies = np.arange(candidates) >= sizes[:, None]
    repeated = rng.integers(0, sizes[:, None], order.shape)
    return np.where(copies, repeated, order).astype(np.int64), copies


def shares_of(weights: Sequence[float], batch: int) -> list[int]:
    """Split `batch` in proportion to `weights`; what rounding leaves goes to the largest rests."""
    exact = np.array(weights) / sum(weights) * batch
    shares = np.floor(exact).astype(int)
    for index in np.argsort(shares - exact, kind="stable")[: batch - int(shares.sum())]:
        shares[index] += 1
    return [int(s) for s in shares]


def ahead(prepare: Callable[[int], T], first: int, last: int) -> Iterator[tuple[int, T, float]]:
    """Yield (step, prepared, seconds waited), preparing one step in the background."""
    if first >= last:
        return
    with ThreadPoolExecutor(1) as worker:
        pending = worker.submit(prepare, first)
        for step in range(first, last):
            start = time.perf_counter()
            ready = pending.result()
            waited = time.perf_counter() - start
            if step + 1 < last:
                pending = worker.submit(prepare, step + 1)
            yield step, ready, waited
