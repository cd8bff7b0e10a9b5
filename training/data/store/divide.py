"""Split a store by scenes, and merge several stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from training.data.store.notes import raw_notes
from training.data.store.reader import PatchStore
from training.data.store.writer import StoreWriter
from training.errors import DataError

# Classes copied at a time: about 50 MB of patches of 32 px.
_BLOCK = 8192


def split_store(
    source: Path, train: Path, validation: Path, scenes: Sequence[str], *, made_by: str
) -> tuple[Path, Path]:
    """Write the named scenes to `validation` and all others to `train`; no scene is in both.

    A name may be a pattern, such as `night/*`.

    Raises:
        DataError: a scene is unknown, one side would have no scene, or an output exists.
    """
    store = PatchStore.open(source)
    held_out = set(used_scenes(store.split(scenes)))
    rest = [name for name in used_scenes(store) if name not in held_out]
    if not held_out or not rest:
        raise DataError(f"{source}: a split needs at least one scene on each side")
    for path, names in ((validation, sorted(held_out)), (train, rest)):
        with StoreWriter(path, store.spec, made_by=made_by, notes=raw_notes(source)) as writer:
            copy_scenes(store, names, writer)
    return train, validation


def random_scenes(store: PatchStore, count: int, seed: int = 0) -> list[str]:
    """Draw `count` scenes to hold out.

    Raises:
        DataError: the store does not have more scenes than that.
    """
    names = used_scenes(store)
    if not 0 < count < len(names):
        raise DataError(f"{store.path}: has {len(names)} scenes, cannot hold out {count}")
    chosen = np.random.default_rng(seed).permutation(len(names))[:count]
    return [names[number] for number in sorted(chosen)]


def merge_stores(sources: Sequence[Path], output: Path, *, made_by: str) -> Path:
    """Write all classes of `sources` to one store; scenes keep their names.

    Raises:
        DataError: the patches are cropped differently, or two sources have a scene of one name.
    """
    stores = [PatchStore.open(source) for source in sources]
    if not stores:
        raise DataError("nothing to merge")
    seen: dict[str, Path] = {}
    for store in stores:
        if store.spec != stores[0].spec:
            raise DataError(
                f"{store.path}: its patches are cropped as {store.spec}, "
                f"those of {stores[0].path} as {stores[0].spec}"
            )
        for name in used_scenes(store):
            if name in seen:
                raise DataError(f"{store.path}: scene {name} is also in {seen[name]}")
            seen[name] = store.path
    with StoreWriter(output, stores[0].spec, made_by=made_by) as writer:
        for store in stores:
            copy_scenes(store, used_scenes(store), writer)
    return output


def used_scenes(store: PatchStore) -> list[str]:
    """Return the names of the scenes that this view has classes of, in store order."""
    return [store.scenes[number] for number in np.unique(store.class_scenes[store.classes])]


def used_labels(store: PatchStore) -> list[str]:
    """Return the labels that this view has classes of, in store order."""
    return [store.labels[number] for number in np.unique(store.class_labels[store.classes])]


def copy_scenes(store: PatchStore, names: Iterable[str], writer: StoreWriter) -> None:
    """Append all classes of the named scenes to `writer`."""
    for name, label in ((n, label) for n in names for label in used_labels(store.split([n]))):
        view = store.split([name]).with_labels([label])
        for start in range(0, len(view), _BLOCK):
            classes = view.classes[start : start + _BLOCK]
            sizes = store.offsets[classes + 1] - store.offsets[classes]
            # The classes of a scene need not be contiguous in the store.
            first = np.repeat(store.offsets[classes], sizes)
            step = np.arange(len(first)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            rows = first + step
            writer.add_classes(
                store.patches(rows)[:, 0],
                sizes,
                scene=name,
                images=[store.images[number] for number in store.sources[rows]],
                keypoints=store.keypoints[rows],
                label=label,
            )
