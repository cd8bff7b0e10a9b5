"""Build a patch store from single photographs and synthetic views of them.

Keypoints are detected anew in every view, so patches differ in position, scale and angle as two
detections of one point do. A class is one keypoint of the photograph together with the detections
in the views that correspond to it by geometry. One photograph is one scene.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from matchserve.threads import off_main_thread
from matchserve.types import Bool, Float32, Float64, Image, Keypoints, PatchSpec, UInt8
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.patches import crop
from training.data.images import list_images, read_image
from training.data.parallel import in_processes
from training.data.photos.correspondence import (
    Tolerance,
    correspond,
    distinct,
    transfer,
)
from training.data.photos.similarity import MIN_SIMILARITY, similarity
from training.data.photos.views import (
    DEFAULT_LEVELS,
    check_levels,
    render,
    view_name,
)
from training.data.store.notes import to_notes
from training.data.store.writer import StoreWriter

# Two keypoints of one image within this tolerance show the same thing and must not be two classes.
_DUPLICATE = Tolerance(position=0.5, scale=0.3, angle_deg=15.0)
# Of eight points around a keypoint, this many must lie in the photograph, not in the reflected
# border around it.
_MIN_INSIDE = 6


@dataclass(frozen=True, slots=True)
class PhotoOptions:
    """How classes are made.

    `levels` has one entry per view. `margin` is the radius around a keypoint, in sigmas, that must
    lie mostly inside the photograph.
    """

    spec: PatchSpec = field(default_factory=PatchSpec)
    levels: tuple[str, ...] = DEFAULT_LEVELS
    seed: int = 0
    max_keypoints: int = 3000
    max_classes: int = 1000
    max_side: int = 1024
    margin: float = 10.0
    tolerance: Tolerance = field(default_factory=Tolerance)
    min_similarity: float = MIN_SIMILARITY

    def __post_init__(self) -> None:
        check_levels(self.levels)


@dataclass(frozen=True, slots=True, eq=False)
class PhotoClasses:
    """The classes of one photograph: patches in class order, and the view and keypoint of each."""

    photo: str
    patches: UInt8
    sizes: NDArray[np.int64]
    views: NDArray[np.int64]
    keypoints: Float32


@dataclass(frozen=True, slots=True)
class _Task:
    photo: str
    path: Path
    options: PhotoOptions


def build_photos(
    directories: Sequence[Path],
    output: Path,
    options: PhotoOptions,
    *,
    workers: int | None = None,
    made_by: str = "data photos",
) -> Path:
    """Write a store of all images in `directories`, using `workers` processes.

    Raises:
        DataError: there is no image, one cannot be read, or `output` exists.
    """
    images = list_images(directories)
    notes = to_notes("photos", _recorded(options))
    tasks = [_Task(name, path, options) for name, path in images.items()]
    with StoreWriter(output, options.spec, made_by=made_by, notes=notes) as writer:
        for classes in in_processes(_run, tasks, workers=workers, label="photographs"):
            if len(classes.sizes):
                names = [view_name(classes.photo, int(view)) for view in classes.views]
                writer.add_classes(
                    classes.patches,
                    classes.sizes,
                    scene=classes.photo,
                    images=names,
                    keypoints=classes.keypoints,
                )
    return output


def photo_classes(grey: UInt8, photo: str, options: PhotoOptions) -> PhotoClasses:
    """Make the classes of one photograph."""
    detector = DetectOptions(max_keypoints=options.max_keypoints, duplicates=True)
    image = _as_image(grey)
    base = off_main_thread(detect, image, detector)
    base = base[_is_inside(base, np.eye(3), grey.shape, options.margin)]
    base = base[distinct(base, _DUPLICATE)]
    rows: list[Float64] = [_rows(np.arange(len(base)), 0, base)]
    patches = [crop(image, base, options.spec)[:, 0]]
    for index, level in enumerate(options.levels, start=1):
        view = render(grey, photo, index, seed=options.seed, level=level)
        view_image = _as_image(view.grey)
        detected = off_main_thread(detect, view_image, detector)
        detected = detected[_is_inside(detected, view.homography, grey.shape, options.margin)]
        pairs = correspond(transfer(base, view.homography), detected, options.tolerance)
        cropped = crop(view_image, detected[pairs[:, 1]], options.spec)[:, 0]
        kept = similarity(patches[0][pairs[:, 0]], cropped) >= options.min_similarity
        rows.append(_rows(pairs[kept, 0], index, detected[pairs[kept, 1]]))
        patches.append(cropped[kept])
    return _group(photo, np.concatenate(rows), np.concatenate(patches), options)


def _run(task: _Task) -> PhotoClasses:
    image = read_image(task.path, max_side=task.options.max_side)
    return photo_classes(image.grey, task.photo, task.options)


def _as_image(grey: UInt8) -> Image:
    return Image(grey, (grey.shape[1], grey.shape[0]))


def _rows(classes: NDArray[np.intp], view: int, keypoints: Keypoints) -> Float64:
    """Return one row per patch: class, view, x, y, sigma, angle."""
    columns = (keypoints.xy, keypoints.sigma, keypoints.angle)
    return np.column_stack([classes, np.full(len(classes), view), *columns]).astype(np.float64)


def _group(photo: str, rows: Float64, patches: UInt8, options: PhotoOptions) -> PhotoClasses:
    """Keep at most `max_classes` classes of at least two patches, in class order."""
    classes = rows[:, 0].astype(np.int64)
    sizes = np.bincount(classes, minlength=1)
    # Keypoints are sorted by strength. A random choice keeps weak ones, which serving meets too.
    usable = np.flatnonzero(sizes >= 2)
    rng = np.random.default_rng([options.seed, len(usable)])
    chosen = np.sort(rng.permutation(usable)[: options.max_classes])
    order = np.argsort(classes, kind="stable")
    order = order[np.isin(classes[order], chosen)]
    return PhotoClasses(
        photo,
        patches[order],
        sizes[chosen].astype(np.int64),
        rows[order, 1].astype(np.int64),
        rows[order, 2:].astype(np.float32),
    )


def _is_inside(
    keypoints: Keypoints, homography: Float64, shape: tuple[int, ...], margin: float
) -> Bool:
    """Return whether most of the neighbourhood of each keypoint shows the photograph."""
    angles = np.arange(8) * np.pi / 4
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    around = keypoints.xy[:, None] + margin * keypoints.sigma[:, None, None] * ring
    limit = np.array([shape[1] - 1, shape[0] - 1])
    in_view = np.all((around >= 0) & (around <= limit), axis=2)
    flat = np.c_[around.reshape(-1, 2), np.ones(around.size // 2)] @ np.linalg.inv(homography).T
    back = (flat[:, :2] / flat[:, 2:]).reshape(around.shape)
    in_photo = np.all((back >= 0) & (back <= limit), axis=2)
    return np.asarray((in_view & in_photo).sum(axis=1) >= _MIN_INSIDE)


def _recorded(options: PhotoOptions) -> dict[str, object]:
    """Return the options that `data recrop` needs to render the views again."""
    recorded = asdict(options)
    del recorded["spec"]
    return recorded
