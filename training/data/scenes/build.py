"""Build a patch store from multi-view image sets, verified by structure from motion.

Each folder is a scene. A class is a reconstructed 3D point with the keypoints that observe it. For
a scene of which too few images register, classes come from verified two-view matches instead.
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
from training.data.photos.similarity import MIN_SIMILARITY, similarity
from training.data.scenes.classes import (
    SceneClasses,
    classes_from_matches,
    classes_from_model,
)
from training.data.scenes.sfm import Scene, SfmOptions, reconstruct
from training.data.scenes.tracks import TrackOptions
from training.data.store.notes import to_notes
from training.data.store.writer import StoreWriter
from training.errors import DataError

# An observation found by geometry alone must be more similar to its class than a matched one.
_ADDED_SIMILARITY = 0.5


@dataclass(frozen=True, slots=True)
class SceneOptions:
    """How scenes are reconstructed and turned into classes."""

    spec: PatchSpec = field(default_factory=PatchSpec)
    sfm: SfmOptions = field(default_factory=SfmOptions)
    tracks: TrackOptions = field(default_factory=TrackOptions)
    min_similarity: float = MIN_SIMILARITY


@dataclass(frozen=True, slots=True, eq=False)
class ScenePatches:
    """The classes of one scene: patches in class order with image and keypoint, and a summary."""

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
    """Return the images of each scene, by name.

    A directory is a scene itself, or contains one scene in each of its folders.

    Raises:
        DataError: a directory is missing or has no images, or two scenes have the same name.
    """
    scenes: dict[str, dict[str, Path]] = {}
    for directory in directories:
        if not directory.is_dir():
            raise DataError(f"{directory}: not a directory")
        folders = [directory, *sorted(p for p in directory.iterdir() if p.is_dir())]
        images_of = {folder: _images_in(folder) for folder in folders}
        if not any(images_of.values()):
            raise DataError(f"{directory}: no images in it or in its folders")
        for folder, images in images_of.items():
            scene = folder.resolve().name
            if images and scene in scenes:
                raise DataError(f"{folder}: a second scene named {scene}")
            if images:
                scenes[scene] = {f"{scene}/{path.name}": path for path in images}
    return scenes


def build_scenes(
    directories: Sequence[Path],
    output: Path,
    options: SceneOptions,
    *,
    workspace: Path,
    workers: int | None = None,
    made_by: str = "data scenes",
) -> list[str]:
    """Write a store of the scenes in `directories`; return one summary line per scene.

    Reconstructions in `workspace` that were made with the same options are reused.

    Raises:
        DataError: there is no scene, an image cannot be read, or `output` exists.
    """
    scenes = find_scenes(directories)
    # Largest scene first, so that it does not start last and run alone at the end.
    order = sorted(scenes, key=lambda scene: -len(scenes[scene]))
    tasks = [_Task(name, scenes[name], workspace / name, options) for name in order]
    recorded = asdict(options)
    del recorded["spec"]
    lines = []
    with StoreWriter(
        output, options.spec, made_by=made_by, notes=to_notes("scenes", recorded)
    ) as writer:
        for result in in_processes(_run, tasks, workers=workers, label="scenes"):
            lines.append(result.summary)
            if len(result.sizes):
                writer.add_classes(
                    result.patches,
                    result.sizes,
                    scene=result.scene,
                    images=result.images,
                    keypoints=result.keypoints,
                )
    return lines


def _run(task: _Task) -> ScenePatches:
    pycolmap.logging.minloglevel = pycolmap.logging.Level.WARNING.value
    scene = reconstruct(task.images, task.workspace, task.options.sfm)
    classes = _classes(scene, task.options.tracks)
    patches, keypoints = _crop(task, scene, classes)
    classes, kept = drop_dissimilar(classes, patches, task.options.min_similarity)
    patches, keypoints = patches[kept], keypoints[kept]
    return ScenePatches(
        task.scene,
        patches,
        classes.sizes,
        classes.images,
        keypoints,
        f"{task.scene}: {len(scene.registered)} of {len(task.images)} images registered, "
        f"{len(classes.sizes)} classes, {len(patches)} patches{classes.remark}",
    )


def _classes(scene: Scene, options: TrackOptions) -> SceneClasses:
    """Return classes of 3D points, or of two-view matches if few images registered."""
    if scene.model is not None and 2 * len(scene.registered) >= len(scene.keypoints):
        return classes_from_model(scene, options)
    return classes_from_matches(scene, options)


def _crop(task: _Task, scene: Scene, classes: SceneClasses) -> tuple[UInt8, Float32]:
    """Crop every keypoint of every class, image by image."""
    side = task.options.spec.size
    patches = np.zeros((len(classes.images), side, side), np.uint8)
    rows = np.zeros((len(classes.images), 4), np.float32)
    names = np.array(classes.images)
    for name in sorted(set(classes.images)):
        here = np.flatnonzero(names == name)
        keypoints: Keypoints = scene.keypoints[name][classes.rows[here]]
        image = read_image(task.images[name])
        patches[here] = crop(image, keypoints, task.options.spec)[:, 0]
        rows[here] = np.column_stack([keypoints.xy, keypoints.sigma, keypoints.angle])
    return patches, rows


def drop_dissimilar(
    classes: SceneClasses, patches: UInt8, min_similarity: float
) -> tuple[SceneClasses, Bool]:
    """Drop patches that are not similar to the first of their class, and classes without support.

    Returns:
        The remaining classes, and which rows of `patches` they are.
    """
    count, is_added = len(classes.sizes), classes.is_added
    owner = np.repeat(np.arange(count), classes.sizes)
    first = np.cumsum(classes.sizes) - classes.sizes
    needed = np.where(is_added, max(min_similarity, _ADDED_SIMILARITY), min_similarity)
    kept = np.asarray(similarity(patches[first[owner]], patches) >= needed)
    kept[first] = True
    remaining = np.bincount(owner[kept], minlength=count)
    matched = np.bincount(owner[~is_added], minlength=count)
    # If most matched patches differ from the first one, the first one is wrong.
    similar = np.bincount(owner[kept & ~is_added], minlength=count)
    is_supported = (remaining >= 2) & (2 * similar > matched)
    kept &= is_supported[owner]
    sizes = np.bincount(owner[kept], minlength=count)
    images = tuple(name for name, is_kept in zip(classes.images, kept, strict=True) if is_kept)
    rest = SceneClasses(
        images, classes.rows[kept], sizes[sizes > 0], is_added[kept], classes.remark
    )
    return rest, kept


def _images_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_file() and p.suffix.lower() in SUFFIXES)
