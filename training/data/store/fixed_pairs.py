"""Limit a store to a fixed number of pairs, to study losses that shall need little data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from training.data.store.notes import raw_notes
from training.data.store.reader import Int64, PatchStore
from training.data.store.writer import StoreWriter
from training.errors import DataError

# Pairs copied at a time: about 16 MB of patches of 32 px.
_BLOCK = 8192


def limit_pairs(source: Path, output: Path, *, count: int, seed: int = 0, made_by: str) -> Path:
    """Write a store of `count` / 2 matching pairs, each a class of its own with two patches.

    The other half of `count` stands for the negative pairs: a loss draws them between these
    classes. If there are more pairs than classes in `source`, some classes show the same point.

    Raises:
        DataError: `source` has fewer matching pairs than that.
    """
    store = PatchStore.open(source)
    left, right, number = draw_pairs(store, count // 2, seed)
    classes = store.classes[number]
    kinds = np.column_stack([store.class_scenes[classes], store.class_labels[classes]])
    with StoreWriter(output, store.spec, made_by=made_by, notes=raw_notes(source)) as writer:
        for scene, label in np.unique(kinds, axis=0):
            rows = np.flatnonzero((kinds == (scene, label)).all(axis=1))
            for start in range(0, len(rows), _BLOCK):
                block = rows[start : start + _BLOCK]
                indices = np.column_stack([left[block], right[block]]).ravel()
                writer.add_classes(
                    np.asarray(store.pixels[indices]),
                    np.full(len(block), 2),
                    scene=store.scenes[scene],
                    images=[store.images[image] for image in store.sources[indices]],
                    keypoints=store.keypoints[indices],
                    label=store.labels[label],
                )
    return output


def draw_pairs(store: PatchStore, count: int, seed: int) -> tuple[Int64, Int64, Int64]:
    """Draw `count` different matching pairs, all equally likely: left, right and class of each.

    Raises:
        DataError: the store has fewer pairs.
    """
    sizes = store.class_sizes
    ends = np.cumsum(sizes * (sizes - 1) // 2)
    total = int(ends[-1]) if len(ends) else 0
    if not 0 < count <= total:
        raise DataError(f"{store.path}: has {total} matching pairs, cannot take {count}")
    rng = np.random.default_rng(seed)
    # Pairs are numbered class by class; in a class, (0, 1), (0, 2), (1, 2), (0, 3) and so on.
    chosen = np.sort(rng.choice(total, count, replace=False, shuffle=False))
    number = np.searchsorted(ends, chosen, side="right")
    within = chosen - (ends - sizes * (sizes - 1) // 2)[number]
    second = np.floor((1 + np.sqrt(1 + 8 * within)) / 2).astype(np.int64)
    first = within - second * (second - 1) // 2
    starts = store.class_starts[number]
    return starts + first, starts + second, number.astype(np.int64)
