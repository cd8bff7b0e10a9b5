"""A room corner papered with photographs, seen by cameras that are known exactly."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from skimage import data as samples

SIZE = (480, 360)
FOCAL = 430.0
SIDE = 3.0


def intrinsics() -> np.ndarray:
    return np.array(
        [[FOCAL, 0, (SIZE[0] - 1) / 2], [0, FOCAL, (SIZE[1] - 1) / 2], [0, 0, 1]], np.float64
    )


def poses(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rotation (world to camera) and centre of cameras on an arc about the corner."""
    found = []
    for step in np.linspace(-0.35, 0.35, count):
        at = np.pi * 1.25 + step
        centre = np.array([3.6 * np.cos(at), 0.5 * step, 3.6 * np.sin(at)])
        ahead = np.array([-0.5, 0.0, -0.5]) - centre
        ahead /= np.linalg.norm(ahead)
        right = np.cross([0.0, 1.0, 0.0], ahead)
        right /= np.linalg.norm(right)
        found.append((np.stack([right, np.cross(ahead, right), ahead]), centre))
    return found


def render(rotation: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Cast a ray a pixel at the two walls x = 0 and z = 0."""
    x, y = np.meshgrid(np.arange(SIZE[0]), np.arange(SIZE[1]))
    pixels = np.stack([x, y, np.ones_like(x)], axis=-1).reshape(-1, 3).astype(np.float64)
    rays = pixels @ np.linalg.inv(intrinsics()).T @ rotation
    image = np.full(len(rays), 128.0, np.float32)
    nearest = np.full(len(rays), np.inf)
    walls = ((2, 0, samples.astronaut()), (0, 2, samples.coffee()))
    for axis, along, picture in walls:
        paper = cv2.resize(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), (512, 512))
        with np.errstate(divide="ignore"):
            reach = -centre[axis] / rays[:, axis]
        hit = centre + reach[:, None] * rays
        u = (hit[:, along] + SIDE) / SIDE * 511
        v = (hit[:, 1] + SIDE / 2) / SIDE * 511
        seen = (reach > 0) & (reach < nearest) & (u >= 0) & (u <= 511) & (v >= 0) & (v <= 511)
        shape = (SIZE[1], SIZE[0])
        maps = [np.clip(m, 0, 511).reshape(shape).astype(np.float32) for m in (u, v)]
        drawn = cv2.remap(paper, maps[0], maps[1], cv2.INTER_LINEAR)
        image[seen] = drawn.ravel()[seen]
        nearest[seen] = reach[seen]
    return np.clip(image.reshape(SIZE[1], SIZE[0]), 0, 255).astype(np.uint8)


def transfer(
    xy: np.ndarray, one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Return where camera `other` sees the wall points that camera `one` sees at `xy` (N, 2)."""
    rotation, centre = one
    pixels = np.column_stack([xy, np.ones(len(xy))])
    rays = pixels @ np.linalg.inv(intrinsics()).T @ rotation
    with np.errstate(divide="ignore"):
        reach = np.stack([-centre[axis] / rays[:, axis] for axis in (0, 2)])
    reach = np.where(reach > 0, reach, np.inf).min(axis=0)
    seen = (centre + reach[:, None] * rays - other[1]) @ other[0].T @ intrinsics().T
    return np.asarray(seen[:, :2] / seen[:, 2:])


def write_scene(folder: Path, count: int) -> None:
    """Write images/ and gt_cameras/ as the Strecha sets have them, intrinsics at double size."""
    (folder / "images").mkdir(parents=True)
    (folder / "gt_cameras").mkdir()
    # Pixel centres are at integers: twice the size moves the principal point by half a pixel.
    full = intrinsics() * 2
    full[:2, 2] = (intrinsics()[:2, 2] + 0.5) * 2 - 0.5
    full[2, 2] = 1
    for number, (rotation, centre) in enumerate(poses(count)):
        name = f"{number:04d}.png"
        cv2.imwrite(str(folder / "images" / name), render(rotation, centre))
        rows = [*full, [0, 0, 0], *rotation.T, centre, [2 * SIZE[0], 2 * SIZE[1]]]
        text = "\n".join(" ".join(f"{value:.10g}" for value in row) for row in rows)
        (folder / "gt_cameras" / f"{name}.camera").write_text(text + "\n")
