"""Crop the classes of a store again, with another magnification or patch size.

Keypoints and image names are in the store; synthetic views are rendered again from their seed.
Detection, matching and reconstruction are not repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from matchserve.types import Float32, Image, Keypoints, PatchSpec, UInt8
from matchserve.vision.patches import crop
from training.data.images import list_images, read_image
from training.data.modal.pairs import find_pairs
from training.data.parallel import in_processes
from training.data.photos.views import render, split_view_name
from training.data.scenes.build import find_scenes
from training.data.store.divide import used_labels, used_scenes
from training.data.store.notes import raw_notes, read_notes
from training.data.store.reader import Int64, PatchStore
from training.data.store.writer import StoreWriter
from training.errors import DataError


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    scene: str
    label: str
    sizes: Int64
    images: tuple[str, ...]
    keypoints: Float32
    paths: dict[str, Path]
    notes: dict[str, Any]
    spec: PatchSpec


def recrop(
    source: Path,
    directories: Sequence[Path],
    output: Path,
    spec: PatchSpec,
    *,
    workers: int | None = None,
    made_by: str = "data recrop",
) -> Path:
    """Write a store with the classes of `source`, whose patches are cut again by `spec`.

    Raises:
        DataError: the store was not made from images, or `directories` lack one of the images.
    """
    store = PatchStore.open(source)
    notes = read_notes(source)
    paths = _find_images(store, notes, directories)
    tasks = list(_tasks(store, notes, paths, spec))
    with StoreWriter(output, spec, made_by=made_by, notes=raw_notes(source)) as writer:
        cropped = in_processes(_run, tasks, workers=workers, label="scenes")
        for task, patches in zip(tasks, cropped, strict=True):
            writer.add_classes(
                patches,
                task.sizes,
                scene=task.scene,
                images=task.images,
                keypoints=task.keypoints,
                label=task.label,
            )
    return output


def _find_images(
    store: PatchStore, notes: dict[str, Any], directories: Sequence[Path]
) -> dict[str, Path]:
    kind = notes.get("kind")
    if kind == "photos":
        paths = list_images(directories)
    elif kind == "scenes":
        scenes = find_scenes(directories)
        paths = {name: path for images in scenes.values() for name, path in images.items()}
    elif kind == "modal":
        pairs = find_pairs(directories)
        paths = {name: path for p in pairs for name, path in zip(p.images, p.paths, strict=True)}
    else:
        raise DataError(
            f"{store.path}: was not made by `data photos`, `data scenes` or `data modal`"
        )
    for name in sorted({split_view_name(name)[0] for name in store.images} - set(paths)):
        raise DataError(f"{store.path}: its image {name} is not in the given folders")
    return paths


def _tasks(
    store: PatchStore, notes: dict[str, Any], paths: dict[str, Path], spec: PatchSpec
) -> Iterator[_Task]:
    """Yield the work for each scene and label, whose classes must be contiguous in the store."""
    kinds = [(s, label) for s in used_scenes(store) for label in used_labels(store.split([s]))]
    for scene, label in kinds:
        classes = store.split([scene]).with_labels([label]).classes
        if int(classes[-1] - classes[0]) != len(classes) - 1:
            raise DataError(
                f"{store.path}: the classes of scene {scene} {label} are not contiguous"
            )
        start, end = int(store.offsets[classes[0]]), int(store.offsets[classes[-1] + 1])
        images = tuple(store.images[number] for number in store.sources[start:end])
        sources = {split_view_name(name)[0] for name in images}
        yield _Task(
            scene,
            label,
            store.offsets[classes + 1] - store.offsets[classes],
            images,
            store.keypoints[start:end],
            {name: paths[name] for name in sources},
            notes,
            spec,
        )


def _run(task: _Task) -> UInt8:
    patches = np.zeros((len(task.images), task.spec.size, task.spec.size), np.uint8)
    names = np.array(task.images)
    for name in sorted(set(task.images)):
        here = np.flatnonzero(names == name)
        rows = task.keypoints[here]
        keypoints = Keypoints(rows[:, :2], rows[:, 2], rows[:, 3], np.ones(len(rows), np.float32))
        patches[here] = crop(_load(task, name), keypoints, task.spec)[:, 0]
    return patches


def _load(task: _Task, name: str) -> Image:
    """Read the image of that name, or render it again if it is a synthetic view."""
    photo, index = split_view_name(name)
    if task.notes["kind"] != "photos":
        return read_image(task.paths[photo])
    image = read_image(task.paths[photo], max_side=int(task.notes["max_side"]))
    grey = image.grey
    if index:
        level = str(task.notes["levels"][index - 1])
        grey = render(grey, photo, index, seed=int(task.notes["seed"]), level=level).grey
    return Image(grey, (grey.shape[1], grey.shape[0]))
