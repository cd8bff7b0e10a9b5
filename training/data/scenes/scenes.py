"""Classes of patches from real multi-view sets, verified in three dimensions.

Each folder is a scene: structure from motion gives 3D points, and a point with the keypoints that
see it gives a class. A scene that does not register falls back to verified two-view matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pycolmap
from numpy.typing import NDArray

from matchserve.types import Bool, Float32, Keypoints, PatchSpec, UInt8
from matchserve.vision.patches import crop
from training.data.images import SUFFIXES, read_image
from training.data.parallel import in_processes
from training.data.photos.alike import MIN_LIKENESS, likeness
from training.data.scenes.sfm import Scene, SfmOptions, reconstruct
from training.data.scenes.tracks import (
    SceneClasses,
    TrackOptions,
    classes_of_matches,
    classes_of_model,
)
from training.data.store.notes import to_notes
from training.data.store.writer import StoreWriter
from training.errors import DataError

# A sighting that no descriptor matched must look more like its class.
_ADDED_LIKENESS = 0.5


@dataclass(frozen=True, slots=True)
class SceneOptions:
    """How scenes become classes."""

    spec: PatchSpec = field(default_factory=PatchSpec)
    sfm: SfmOptions = field(default_factory=SfmOptions)
    tracks: TrackOptions = field(default_factory=TrackOptions)
    min_likeness: float = MIN_LIKENESS


@dataclass(frozen=True, slots=True, eq=False)
class ScenePatches:
    """What one scene gives: patches in class order with image and keypoint, and a line to print."""

    scene: str
    patches: UInt8
    sizes: NDArray[np.int64]
    images: tuple[str, ...]
    keypoints: Float32
    summary: str


@dataclass(frozen=True, slots=True)
class _Task:
    scene: str
    images: dict[str, Path]
    workspace: Path
    options: SceneOptions


def find_scenes(directories: Sequence[Path]) -> dict[str, dict[str, Path]]:
    """Images by scene: each directory given is one, or holds one in each of its folders.

    Raises:
        DataError: a directory is missing or has no images, or two scenes share a name.
    """
    found: dict[str, dict[str, Path]] = {}
    for directory in directories:
        if not directory.is_dir():
            raise DataError(f"{directory}: not a directory")
        folders = [directory, *sorted(p for p in directory.iterdir() if p.is_dir())]
        held = {folder: _images_in(folder) for folder in folders}
        if not any(held.values()):
            raise DataError(f"{directory}: no images in it or in its folders")
        for folder, images in held.items():
            scene = folder.resolve().name
            if images and scene in found:
                raise DataError(f"{folder}: a second scene named {scene}")
            if images:
                found[scene] = {f"{scene}/{path.name}": path for path in images}
    return found


def build_scenes(
    directories: Sequence[Path],
    output: Path,
    options: SceneOptions,
    *,
    workspace: Path,
    workers: int | None = None,
    made_by: str = "data scenes",
) -> list[str]:
    """Make a store of the scenes under `directories`; return a line on each.

    What was reconstructed in `workspace` before, with the same options, is used again.

    Raises:
        DataError: no scene, an image that cannot be read, or a store that is already there.
    """
    scenes = find_scenes(directories)
    # The largest first, so that no process is left with it at the end.
    order = sorted(scenes, key=lambda scene: -len(scenes[scene]))
    tasks = [_Task(name, scenes[name], workspace / name, options) for name in order]
    recorded = asdict(options)
    del recorded["spec"]
    lines = []
    with StoreWriter(
        output, options.spec, made_by=made_by, notes=to_notes("scenes", recorded)
    ) as writer:
        for made in in_processes(_run, tasks, workers=workers, label="scenes"):
            lines.append(made.summary)
            if len(made.sizes):
                writer.add_classes(
                    made.patches,
                    made.sizes,
                    scene=made.scene,
                    images=made.images,
                    keypoints=made.keypoints,
                )
    return lines


def _run(task: _Task) -> ScenePatches:
    pycolmap.logging.minloglevel = pycolmap.logging.Level.WARNING.value
    scene = reconstruct(task.images, task.workspace, task.options.sfm)
    made = _classes(scene, task.options.tracks)
    patches, keypoints = _cut(task, scene, made)
    made, kept = _without_strangers(made, patches, task.options.min_likeness)
    patches, keypoints = patches[kept], keypoints[kept]
    return ScenePatches(
        task.scene,
        patches,
        made.sizes,
        made.images,
        keypoints,
        f"{task.scene}: {len(scene.registered)} of {len(task.images)} images registered, "
        f"{len(made.sizes)} classes, {len(patches)} patches{made.remark}",
    )


def _classes(scene: Scene, options: TrackOptions) -> SceneClasses:
    """3D-verified classes, or two-view ones when less than half of the images has a pose."""
    if scene.model is not None and 2 * len(scene.registered) >= len(scene.keypoints):
        return classes_of_model(scene, options)
    return classes_of_matches(scene, options)


def _cut(task: _Task, scene: Scene, made: SceneClasses) -> tuple[UInt8, Float32]:
    """Crop every keypoint of every class, image by image."""
    side = task.options.spec.size
    patches = np.zeros((len(made.images), side, side), np.uint8)
    rows = np.zeros((len(made.images), 4), np.float32)
    names = np.array(made.images)
    for name in sorted(set(made.images)):
        here = np.flatnonzero(names == name)
        keypoints: Keypoints = scene.keypoints[name][made.rows[here]]
        image = read_image(task.images[name])
        patches[here] = crop(image, keypoints, task.options.spec)[:, 0]
        rows[here] = np.column_stack([keypoints.xy, keypoints.sigma, keypoints.angle])
    return patches, rows


def _without_strangers(
    made: SceneClasses, patches: UInt8, min_likeness: float
) -> tuple[SceneClasses, Bool]:
    """Drop patches that look nothing like the first of their class, and classes left with few."""
    owner = np.repeat(np.arange(len(made.sizes)), made.sizes)
    first = np.cumsum(made.sizes) - made.sizes
    needed = np.where(made.is_added, max(min_likeness, _ADDED_LIKENESS), min_likeness)
    kept = np.asarray(likeness(patches[first[owner]], patches) >= needed)
    kept[first] = True
    left = np.bincount(owner[kept], minlength=len(made.sizes))
    matched = np.bincount(owner[~made.is_added], minlength=len(made.sizes))
    # Where most do not look like the first, it is the first that is the stranger.
    trusted = (left >= 2) & (2 * np.bincount(owner[kept & ~made.is_added]) > matched)
    kept &= trusted[owner]
    sizes = np.bincount(owner[kept], minlength=len(made.sizes))
    images = tuple(name for name, is_kept in zip(made.images, kept, strict=True) if is_kept)
    rest = SceneClasses(images, made.rows[kept], sizes[sizes > 0], made.is_added[kept], made.remark)
    return rest, kept


def _images_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_file() and p.suffix.lower() in SUFFIXES)
