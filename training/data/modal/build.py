"""Build a patch store from registered pairs of images in other light, seasons or sensors.

A class has two patches, one of each image of a pair, and one of two labels. `detected` classes
are keypoints that were found in both images. `projected` classes are keypoints of one image and
the place in the other image where the homography puts them: nothing needs to be detected there,
so they also show what a detector misses. One pair of images is one scene.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from matchserve.threads import off_main_thread
from matchserve.types import Bool, Float32, Float64, Image, Keypoints, PatchSpec, UInt8
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.patches import crop
from training.data.images import read_image
from training.data.modal.pairs import RegisteredPair, find_pairs
from training.data.parallel import in_processes
from training.data.photos.correspondence import Tolerance, correspond, distinct, transfer
from training.data.photos.similarity import MIN_SIMILARITY, similarity
from training.data.store.notes import to_notes
from training.data.store.writer import StoreWriter

Orientation = Literal["own", "aligned"]
DETECTED, PROJECTED = "detected", "projected"
# Two keypoints of one image within this tolerance show the same thing and must not be two classes.
_DUPLICATE = Tolerance(position=0.5, scale=0.3, angle_deg=15.0)
_ANY_ANGLE_DEG = 181.0


@dataclass(frozen=True, slots=True)
class ModalOptions:
    """How classes are made.

    `orientation` is the angle of the patches. `own` uses the orientations that were detected;
    `aligned` leaves the first patch upright and turns the second one as the homography does, off
    by up to `turn_deg`: orientations are seldom found again in images of another sensor.
    `min_similarity` is the smallest absolute correlation of coarse patches: contrast may be
    inverted. `margin` is the radius around a keypoint, in sigmas, that must lie in both images.
    `max_classes` is counted for each pair and label.
    """

    spec: PatchSpec = field(default_factory=PatchSpec)
    orientation: Orientation = "aligned"
    turn_deg: float = 15.0
    seed: int = 0
    max_keypoints: int = 2048
    max_classes: int = 400
    margin: float = 8.0
    tolerance: Tolerance = field(default_factory=Tolerance)
    min_similarity: float = MIN_SIMILARITY


@dataclass(frozen=True, slots=True, eq=False)
class ModalClasses:
    """Classes of one pair: patches (N, 2, S, S), keypoints (N, 2, 4), and which are detected."""

    patches: UInt8
    keypoints: Float32
    is_detected: Bool


@dataclass(frozen=True, slots=True)
class _Task:
    pair: RegisteredPair
    options: ModalOptions


def build_modal(
    directories: Sequence[Path],
    output: Path,
    options: ModalOptions,
    *,
    workers: int | None = None,
    made_by: str = "data modal",
) -> Path:
    """Write a store of all registered pairs in `directories`, using `workers` processes.

    Raises:
        DataError: there is no pair, one cannot be read, or `output` exists.
    """
    pairs = find_pairs(directories)
    recorded = asdict(options)
    del recorded["spec"]
    tasks = [_Task(pair, options) for pair in pairs]
    notes = to_notes("modal", recorded)
    with StoreWriter(output, options.spec, made_by=made_by, notes=notes) as writer:
        found = in_processes(_run, tasks, workers=workers, label="pairs")
        for pair, classes in zip(pairs, found, strict=True):
            _write(writer, pair, classes)
    return output


def modal_classes(
    images: tuple[Image, Image], homography: Float64, options: ModalOptions, rng: Generator
) -> ModalClasses:
    """Make the classes of one pair."""
    found = _detected_keypoints(images, options)
    inverse = np.asarray(np.linalg.inv(homography), np.float64)
    moved = (transfer(found[0], homography), transfer(found[1], inverse))
    for_angles = options.tolerance
    if options.orientation == "aligned":
        for_angles = Tolerance(for_angles.position, for_angles.scale, _ANY_ANGLE_DEG)
    pairs = correspond(moved[0], found[1], for_angles)
    lonely = [np.setdiff1d(np.arange(len(k)), pairs[:, side]) for side, k in enumerate(found)]
    left = _join(found[0][pairs[:, 0]], found[0][lonely[0]], moved[1][lonely[1]])
    right = _join(found[1][pairs[:, 1]], moved[0][lonely[0]], found[1][lonely[1]])
    if options.orientation == "aligned":
        left, right = _aligned(left, homography, right, options, rng)
    is_detected = np.arange(len(left)) < len(pairs)
    kept = _is_inside(left, images[0], options.margin) & _is_inside(
        right, images[1], options.margin
    )
    kept &= distinct(left, _DUPLICATE) & distinct(right, _DUPLICATE)
    return _cut(images, (left[kept], right[kept]), is_detected[kept], options, rng)


def _run(task: _Task) -> ModalClasses:
    images = (read_image(task.pair.paths[0]), read_image(task.pair.paths[1]))
    rng = np.random.default_rng([task.options.seed, zlib.crc32(task.pair.name.encode())])
    return modal_classes(images, task.pair.homography, task.options, rng)


def _detected_keypoints(
    images: tuple[Image, Image], options: ModalOptions
) -> tuple[Keypoints, Keypoints]:
    is_upright = options.orientation == "aligned"
    detector = DetectOptions(
        max_keypoints=options.max_keypoints, upright=is_upright, duplicates=not is_upright
    )
    first, second = (off_main_thread(detect, image, detector) for image in images)
    return first[distinct(first, _DUPLICATE)], second[distinct(second, _DUPLICATE)]


def _aligned(
    left: Keypoints, homography: Float64, right: Keypoints, options: ModalOptions, rng: Generator
) -> tuple[Keypoints, Keypoints]:
    """Make the left keypoints upright, and turn the right ones as the homography does."""
    upright = _turned(left, np.zeros(len(left), np.float32))
    limit = np.radians(options.turn_deg)
    turn = transfer(upright, homography).angle + rng.uniform(-limit, limit, len(left))
    return upright, _turned(right, turn.astype(np.float32))


def _cut(
    images: tuple[Image, Image],
    keypoints: tuple[Keypoints, Keypoints],
    is_detected: Bool,
    options: ModalOptions,
    rng: Generator,
) -> ModalClasses:
    """Crop both patches of each class; keep `max_classes` of each label that are similar enough."""
    patches = np.stack(
        [crop(i, k, options.spec)[:, 0] for i, k in zip(images, keypoints, strict=True)], axis=1
    )
    alike = np.abs(similarity(patches[:, 0], patches[:, 1])) >= options.min_similarity
    chosen = np.sort(
        np.concatenate(
            [
                rng.permutation(np.flatnonzero(alike & (is_detected == label)))[
                    : options.max_classes
                ]
                for label in (True, False)
            ]
        )
    )
    rows = np.stack([_rows(k[chosen]) for k in keypoints], axis=1)
    return ModalClasses(patches[chosen], rows, is_detected[chosen])


def _write(writer: StoreWriter, pair: RegisteredPair, classes: ModalClasses) -> None:
    side = classes.patches.shape[-1]
    for label, rows in (
        (DETECTED, np.flatnonzero(classes.is_detected)),
        (PROJECTED, np.flatnonzero(~classes.is_detected)),
    ):
        if len(rows):
            writer.add_classes(
                classes.patches[rows].reshape(-1, side, side),
                np.full(len(rows), 2),
                scene=pair.name,
                images=list(pair.images) * len(rows),
                keypoints=classes.keypoints[rows].reshape(-1, 4),
                label=label,
            )


def _is_inside(keypoints: Keypoints, image: Image, margin: float) -> Bool:
    """Return whether the neighbourhood of each keypoint lies in the image."""
    limit = np.array(image.size) - 1
    reach = margin * keypoints.sigma[:, None]
    inside = (keypoints.xy >= reach) & (keypoints.xy <= limit - reach)
    return np.asarray(inside.all(axis=1))


def _turned(keypoints: Keypoints, angle: Float32) -> Keypoints:
    return Keypoints(keypoints.xy, keypoints.sigma, angle, keypoints.score)


def _join(*parts: Keypoints) -> Keypoints:
    columns = ("xy", "sigma", "angle", "score")
    return Keypoints(*(np.concatenate([getattr(p, name) for p in parts]) for name in columns))


def _rows(keypoints: Keypoints) -> NDArray[np.float32]:
    """Return x, y, sigma and angle of each keypoint."""
    return np.column_stack([keypoints.xy, keypoints.sigma, keypoints.angle]).astype(np.float32)
