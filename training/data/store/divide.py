"""Stores from stores: some scenes of one, or all scenes of several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from training.data.store.notes import raw_notes
from training.data.store.reader import PatchStore
from training.data.store.writer import StoreWriter
from training.errors import DataError

# Classes copied at once: patches of 32 px then take some 50 MB.
_BLOCK = 8192


def split_store(
    source: Path, train: Path, validation: Path, scenes: Sequence[str], *, made_by: str
) -> tuple[Path, Path]:
    """Write the named scenes to `validation` and all others to `train`; no scene is in both.

    Raises:
        DataError: a scene is unknown, none is left, or an output is already there.
    """
    store = PatchStore.open(source)
    held = set(scenes)
    rest = [name for name in used_scenes(store) if name not in held]
    if not held or not rest:
        raise DataError(f"{source}: a split needs scenes on both sides")
    for path, names in ((validation, sorted(held)), (train, rest)):
        with StoreWriter(path, store.spec, made_by=made_by, notes=raw_notes(source)) as writer:
            copy_scenes(store, names, writer)
    return train, validation


def random_scenes(store: PatchStore, count: int, seed: int = 0) -> list[str]:
    """Draw `count` scenes to hold out.

    Raises:
        DataError: there are not that many.
    """
    names = used_scenes(store)
    if not 0 < count < len(names):
        raise DataError(f"{store.path}: has {len(names)} scenes, cannot hold out {count}")
    chosen = np.random.default_rng(seed).permutation(len(names))[:count]
    return [names[number] for number in sorted(chosen)]


def merge_stores(sources: Sequence[Path], output: Path, *, made_by: str) -> Path:
    """Write all classes of `sources` to one store; scenes keep their names.

    Raises:
        DataError: patches are cut differently, or two sources have a scene of one name.
    """
    stores = [PatchStore.open(source) for source in sources]
    if not stores:
        raise DataError("nothing to merge")
    seen: dict[str, Path] = {}
    for store in stores:
        if store.spec != stores[0].spec:
            raise DataError(f"{store.path}: cut as {store.spec}, but {stores[0].spec} before")
        for name in used_scenes(store):
            if name in seen:
                raise DataError(f"{store.path}: scene {name} is in {seen[name]} too")
            seen[name] = store.path
    with StoreWriter(output, stores[0].spec, made_by=made_by) as writer:
        for store in stores:
            copy_scenes(store, used_scenes(store), writer)
    return output


def used_scenes(store: PatchStore) -> list[str]:
    """Names of the scenes that classes of this view belong to, in store order."""
    return [store.scenes[number] for number in np.unique(store.class_scenes[store.classes])]


def copy_scenes(store: PatchStore, names: Iterable[str], writer: StoreWriter) -> None:
    """Append all classes of the named scenes to `writer`."""
    for name in names:
        view = store.split([name])
        for start in range(0, len(view), _BLOCK):
            classes = view.classes[start : start + _BLOCK]
            sizes = store.offsets[classes + 1] - store.offsets[classes]
            # Rows of the chosen classes, which need not be neighbours in the store.
            first = np.repeat(store.offsets[classes], sizes)
            step = np.arange(len(first)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            rows = first + step
            writer.add_classes(
                store.patches(rows)[:, 0],
                sizes,
                scene=name,
                images=[store.images[number] for number in store.sources[rows]],
                keypoints=store.keypoints[rows],
            )
