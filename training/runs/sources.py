"""Open the patch stores of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from training.data.photos.synthetic import ensure_synthetic
from training.data.store.reader import PatchStore
from training.errors import DataError
from training.runs.recipe import Source


def open_source(source: Source, cache: Path) -> PatchStore:
    """Open the store of `source`, limited to its scenes and labels.

    Generated stores are kept in `cache`.

    Raises:
        DataError: the store cannot be opened, or the scenes leave no class.
    """
    if source.path.startswith("synthetic:"):
        store = PatchStore.open(ensure_synthetic(source.path, cache))
    else:
        store = PatchStore.open(source.path)
    if source.scenes:
        store = store.split(source.scenes)
    if source.without_scenes:
        dropped = store.split(source.without_scenes).classes
        store = store.select_classes(~np.isin(store.classes, dropped))
    if source.labels:
        store = store.with_labels(source.labels)
    if not len(store):
        raise DataError(f"{source.path}: the selected scenes and labels contain no class")
    return store


def refuse_shared_classes(stores: Sequence[PatchStore]) -> None:
    """Refuse training stores that share classes: one class twice in a batch is a false negative.

    Raises:
        DataError: two stores have the same content and a class in common.
    """
    for store, other in combinations(stores, 2):
        if store.digest == other.digest and np.intersect1d(store.classes, other.classes).size:
            raise DataError(
                f"{other.path}: given twice in data.train (as {store.path}): a batch could contain "
                "one class as its own negative; raise its weight instead, or select other scenes"
            )


def refuse_other_size(validation: Sequence[PatchStore], train: PatchStore) -> None:
    """Refuse validation patches of another size than the network reads.

    Raises:
        DataError: the message names both stores and sizes.
    """
    for store in validation:
        if store.spec.size != train.spec.size:
            raise DataError(
                f"{store.path}: its patches have {store.spec.size} samples a side, but those of "
                f"data.train ({train.path}) have {train.spec.size}; recrop one of them with "
                "`data recrop`"
            )


def open_sources(sources: Sequence[Source], cache: Path) -> list[PatchStore]:
    """Open several stores, whose patches must have the same size and magnification.

    Raises:
        DataError: the patches differ, or a store cannot be opened.
    """
    stores = [open_source(source, cache) for source in sources]
    for store in stores[1:]:
        if store.spec != stores[0].spec:
            raise DataError(
                f"{store.path}: its patches are {store.spec}, but those of {stores[0].path} are "
                f"{stores[0].spec}; recrop one of them with `data recrop`"
            )
    return stores
