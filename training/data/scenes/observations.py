"""Every sighting of every 3D point of a reconstruction, as flat arrays.

A sighting carries what a class is judged by: how far the keypoint is from the projected point,
how large the keypoint is in the world (sigma x depth / focal length), from where it was seen, and
which way its angle points in space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.types import Bool, Float64, Keypoints
from training.data.scenes.sfm import PIXEL_SHIFT

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """N sightings: point, image (index in `names`), keypoint row, and its geometry.

    `error` in pixels; `size` of sigma in world units; `toward` the unit vector from the point to
    the camera (N, 3); `heading` the keypoint's direction in the world (N, 3).
    """

    point: Int64
    image: Int64
    row: Int64
    error: Float64
    size: Float64
    toward: Float64
    heading: Float64

    def __len__(self) -> int:
        return len(self.point)

    def __getitem__(self, rows: NDArray[Any]) -> Observations:
        return Observations(*(getattr(self, f.name)[rows] for f in fields(self)))

    def regrouped(self, point: Int64) -> Observations:
        """The same sightings with other point numbers."""
        return replace(self, point=point)


@dataclass(frozen=True, slots=True, eq=False)
class Camera:
    """A registered image: its name, pose (world to camera) and pycolmap camera."""

    name: str
    rotation: Float64
    translation: Float64
    intrinsics: Any

    @property
    def centre(self) -> Float64:
        """Where the camera is in the world."""
        return np.asarray(-self.rotation.T @ self.translation)

    @property
    def focal(self) -> float:
        """Mean focal length in pixels."""
        return float(self.intrinsics.mean_focal_length())

    def project(self, xyz: Float64) -> tuple[Float64, Float64]:
        """Pixel (N, 2), centre of the first pixel at 0, and depth (N,) of world points."""
        local = xyz @ self.rotation.T + self.translation
        pixels = (
            np.asarray(self.intrinsics.img_from_cam(local, check_cheirality=False)) - PIXEL_SHIFT
        )
        return pixels, local[:, 2]


def read_cameras(model: Any) -> list[Camera]:
    """The registered images of a pycolmap reconstruction, by name."""
    found = []
    for image_id in model.reg_image_ids():
        image = model.image(image_id)
        pose = np.asarray(image.cam_from_world().matrix())
        camera = model.camera(image.camera_id)
        found.append(Camera(image.name, pose[:, :3], pose[:, 3], camera))
    return sorted(found, key=lambda camera: camera.name)


def read_points(model: Any, cameras: list[Camera]) -> tuple[Float64, Int64]:
    """Points (P, 3), and sightings (N, 3) as point, index of the camera and keypoint row."""
    index = {camera.name: number for number, camera in enumerate(cameras)}
    numbers = {i: index[model.image(i).name] for i in model.reg_image_ids()}
    points = list(model.points3D.values())
    xyz = np.array([point.xyz for point in points], np.float64).reshape(-1, 3)
    seen = [
        (number, numbers[element.image_id], element.point2D_idx)
        for number, point in enumerate(points)
        for element in point.track.elements
    ]
    return xyz, np.array(seen, np.int64).reshape(-1, 3)


def measure(
    xyz: Float64, seen: Int64, cameras: list[Camera], keypoints: Mapping[str, Keypoints]
) -> Observations:
    """Fill in the geometry of sightings (point, camera, row), in the order given."""
    count = len(seen)
    error, size = np.full(count, np.inf), np.ones(count)
    toward, heading = np.zeros((count, 3)), np.zeros((count, 3))
    for number, camera in enumerate(cameras):
        here = np.flatnonzero(seen[:, 1] == number)
        if not len(here):
            continue
        place = xyz[seen[here, 0]]
        pixels, depth = camera.project(place)
        found = keypoints[camera.name][seen[here, 2]]
        error[here] = np.where(depth > 0, np.linalg.norm(pixels - found.xy, axis=1), np.inf)
        size[here] = found.sigma * np.maximum(depth, 1e-9) / camera.focal
        toward[here] = unit(camera.centre - place)
        flat = np.stack([np.cos(found.angle), np.sin(found.angle), np.zeros(len(here))], axis=1)
        heading[here] = flat @ camera.rotation
    return Observations(seen[:, 0], seen[:, 1], seen[:, 2], error, size, toward, heading)


def plane_angles(observed: Observations, count: int) -> Float64:
    """Angle of each heading in the plane across the mean line of sight of its point."""
    mean = np.zeros((count, 3))
    np.add.at(mean, observed.point, observed.toward)
    normal = unit(mean)
    # Any vector not along the normal starts a basis of the plane.
    helper = np.where(np.abs(normal[:, :1]) < 0.7, [[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]])
    first = unit(np.cross(normal, helper))
    second = np.cross(normal, first)
    across = np.einsum("nk,nk->n", observed.heading, first[observed.point])
    along = np.einsum("nk,nk->n", observed.heading, second[observed.point])
    return np.asarray(np.arctan2(along, across))


def same_group_pairs(group: Int64) -> tuple[Int64, Int64]:
    """All ordered pairs (i, j), i = j included, of rows that have the same `group`."""
    order = np.argsort(group, kind="stable")
    _, start, count = np.unique(group[order], return_index=True, return_counts=True)
    repeats = np.repeat(count, count)
    left = np.repeat(np.arange(len(group)), repeats)
    first = np.repeat(np.repeat(start, count), repeats)
    step = np.arange(len(left)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return order[left].astype(np.int64), order[first + step].astype(np.int64)


def best_of_each(group: Int64, value: Float64) -> Bool:
    """Mark, in every group, the one row of lowest value."""
    order = np.lexsort((np.arange(len(group)), value, group))
    leads = np.ones(len(group), np.bool_)
    leads[1:] = group[order][1:] != group[order][:-1]
    marked = np.zeros(len(group), np.bool_)
    marked[order[leads]] = True
    return marked


def unit(rows: Float64) -> Float64:
    """Rows of length one."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))
