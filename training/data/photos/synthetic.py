"""Generate a patch store from random textures, for tests and trial runs without data.

A scene is one image of overlapping shapes and noise at many scales. Its points are chosen at
random, with random scale and angle. Each view is the image under a random homography, blurred,
relit and noisy; the position, scale and angle of the keypoints have small errors, as those of a
detector. Patches are cropped as those of photographs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from matchserve.types import Float64, Image, Keypoints, PatchSpec, UInt8
from matchserve.vision.patches import crop
from training.data.store.writer import StoreWriter
from training.errors import DataError

_SIDE = 320
_POINTS = 100
_VIEWS = 5


@dataclass(frozen=True, slots=True)
class Difficulty:
    """How much the views of a point differ.

    Standard deviations of the keypoint's position (`shift`, in sigmas), angle and log scale, and of
    the affine part of the homography (`tilt`); the largest standard deviation of the `noise`, in
    grey levels; the lowest `contrast`.
    """

    shift: float = 0.7
    turn_rad: float = 0.14
    scale: float = 0.14
    tilt: float = 0.30
    noise: float = 7.0
    contrast: float = 0.45


def ensure_synthetic(name: str, cache: Path) -> Path:
    """Return the path of the store `synthetic:SEED:CLASSES`, generating it in `cache` if needed.

    Raises:
        DataError: the name does not have that form.
    """
    _, _, rest = name.partition(":")
    seed, _, classes = rest.partition(":")
    if not (seed.isdigit() and classes.isdigit() and int(classes) >= 2):
        raise DataError(f"{name}: expected synthetic:SEED:CLASSES, two whole numbers")
    path = cache / f"synthetic-{seed}-{classes}"
    if not path.exists():
        try:
            write_synthetic(path, seed=int(seed), classes=int(classes))
        except DataError:
            # Another process (another rank of a distributed run) may have finished it first.
            if not path.exists():
                raise
    return path


def write_synthetic(path: Path, *, seed: int, classes: int, spec: PatchSpec | None = None) -> None:
    """Write a store of `classes` points: 100 points per scene, five views of each."""
    spec = spec or PatchSpec()
    difficulty = Difficulty()
    made_by = f"synthetic:{seed}:{classes}"
    with StoreWriter(path, spec, made_by=made_by, notes="generated textures") as writer:
        for scene in range(-(-classes // _POINTS)):
            rng = np.random.default_rng([seed, scene])
            count = min(_POINTS, classes - scene * _POINTS)
            patches, points = _scene(rng, count, spec, difficulty)
            name = f"texture-{scene}"
            writer.add_classes(
                patches,
                np.full(count, _VIEWS),
                scene=name,
                images=[f"{name}-view-{view}" for _ in range(count) for view in range(_VIEWS)],
                keypoints=points,
            )


def texture(rng: np.random.Generator, side: int = _SIDE) -> UInt8:
    """Draw an image: noise of several octaves, covered by a few hundred shapes."""
    picture = np.zeros((side, side), np.float32)
    for octave in range(2, 8):
        cells = max(2, side // 2**octave)
        coarse = rng.standard_normal((cells, cells)).astype(np.float32)
        picture += cv2.resize(coarse, (side, side), interpolation=cv2.INTER_CUBIC) * 2 ** (
            octave / 2
        )
    picture = (picture - picture.mean()) / picture.std() * 35 + 128
    for _ in range(int(rng.integers(150, 400))):
        _draw_shape(picture, rng)
    return np.asarray(np.clip(picture, 0, 255), np.uint8)


def _draw_shape(picture: np.ndarray, rng: np.random.Generator) -> None:
    side = len(picture)
    x, y = (int(v) for v in rng.integers(0, side, 2))
    size = int(np.exp(rng.uniform(np.log(2), np.log(side / 8))))
    grey = float(rng.uniform(0, 255))
    kind = rng.integers(0, 3)
    if kind == 0:
        axes = (size, int(rng.integers(1, size + 1)))
        cv2.ellipse(picture, (x, y), axes, float(rng.uniform(0, 180)), 0, 360, grey, -1)
    elif kind == 1:
        corners = rng.normal((x, y), size, (int(rng.integers(3, 6)), 2))
        cv2.fillPoly(picture, [corners.astype(np.int32)], grey)
    else:
        end = tuple(int(v) for v in rng.normal((x, y), 3 * size))
        cv2.line(picture, (x, y), end, grey, int(rng.integers(1, 4)))


def _scene(
    rng: np.random.Generator, count: int, spec: PatchSpec, difficulty: Difficulty
) -> tuple[UInt8, Float64]:
    picture = texture(rng)
    xy = rng.uniform(0.15 * _SIDE, 0.85 * _SIDE, (count, 2))
    sigma = np.exp(rng.uniform(np.log(1.5), np.log(4.0), count))
    angle = rng.uniform(-np.pi, np.pi, count)
    patches = np.empty((count, _VIEWS, spec.size, spec.size), np.uint8)
    points = np.empty((count, _VIEWS, 4))
    for view in range(_VIEWS):
        warp = _homography(rng, difficulty)
        seen = _photograph(picture, warp, rng, difficulty)
        rows = _keypoints_in_view(np.column_stack([xy, sigma, angle]), warp)
        rows[:, :2] += rng.normal(0, difficulty.shift, (count, 2)) * rows[:, 2:3]
        rows[:, 2] *= np.exp(rng.normal(0, difficulty.scale, count))
        rows[:, 3] += rng.normal(0, difficulty.turn_rad, count)
        keypoints = Keypoints(
            xy=rows[:, :2].astype(np.float32),
            sigma=rows[:, 2].astype(np.float32),
            angle=rows[:, 3].astype(np.float32),
            score=np.ones(count, np.float32),
        )
        patches[:, view] = crop(Image(seen, (_SIDE, _SIDE)), keypoints, spec)[:, 0]
        points[:, view] = rows
    return patches.reshape(-1, spec.size, spec.size), points.reshape(-1, 4)


def _homography(rng: np.random.Generator, difficulty: Difficulty) -> Float64:
    """Draw a homography about the image centre: rotation, tilt and a slight enlargement."""
    angle = rng.uniform(-np.pi, np.pi)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    tilted = np.eye(2) + rng.normal(0, difficulty.tilt / 2, (2, 2))
    warp = np.eye(3)
    warp[:2, :2] = rotation @ tilted * np.exp(rng.normal(0.1, 0.15))
    warp[2, :2] = rng.normal(0, 2e-4, 2)
    centre = np.array([[1, 0, _SIDE / 2], [0, 1, _SIDE / 2], [0, 0, 1]])
    result: Float64 = centre @ warp @ np.linalg.inv(centre)
    return result


def _photograph(
    picture: UInt8, warp: Float64, rng: np.random.Generator, difficulty: Difficulty
) -> UInt8:
    seen = cv2.warpPerspective(
        picture, warp, (_SIDE, _SIDE), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT
    ).astype(np.float32)
    blur = rng.uniform(0.0, 1.6)
    if blur > 0.4:
        seen = np.asarray(cv2.GaussianBlur(seen, (0, 0), blur), np.float32)
    gain = rng.uniform(difficulty.contrast, 1.2)
    seen = 255 * (seen / 255) ** np.exp(rng.normal(0, 0.25)) * gain + rng.uniform(-25, 25)
    seen = seen + rng.normal(0, rng.uniform(0, difficulty.noise), seen.shape)
    return np.asarray(np.clip(seen, 0, 255), np.uint8)


def _keypoints_in_view(rows: Float64, warp: Float64) -> Float64:
    """Map rows of x, y, sigma, angle by the derivative of the homography at each point."""
    xy = rows[:, :2]
    result = rows.copy()
    result[:, :2] = _project(xy, warp)
    ahead = np.column_stack([np.cos(rows[:, 3]), np.sin(rows[:, 3])])
    sideways = np.column_stack([-ahead[:, 1], ahead[:, 0]])
    along = _project(xy + 0.1 * ahead, warp) - result[:, :2]
    across = _project(xy + 0.1 * sideways, warp) - result[:, :2]
    area = np.abs(along[:, 0] * across[:, 1] - along[:, 1] * across[:, 0]) / 0.01
    result[:, 2] *= np.sqrt(area)
    result[:, 3] = np.arctan2(along[:, 1], along[:, 0])
    return result


def _project(xy: Float64, warp: Float64) -> Float64:
    mapped = np.column_stack([xy, np.ones(len(xy))]) @ warp.T
    result: Float64 = mapped[:, :2] / mapped[:, 2:]
    return result
