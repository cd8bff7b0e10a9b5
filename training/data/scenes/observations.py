"""Observations of the 3D points of a reconstruction, as flat arrays.

An observation is a keypoint that shows a 3D point. It holds what a class is judged by: the
reprojection error, the size of the keypoint in the world (sigma x depth / focal length), the
viewing direction, and the direction of the keypoint's angle in space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.collections.colmap import PIXEL_SHIFT
from matchserve.types import Bool, Float64, Keypoints

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """N observations: point number, camera number, keypoint row, and their geometry.

    `error` is the reprojection error in pixels; `size` is sigma in world units; `toward` (N, 3)
    is the unit vector from the point to the camera; `heading` (N, 3) is the direction of the
    keypoint's angle in the world.
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

    def with_points(self, point: Int64) -> Observations:
        """Return the same observations with other point numbers."""
        return replace(self, point=point)

    def joined(self, other: Observations) -> Observations:
        """Return these observations followed by those of `other`."""
        names = [f.name for f in fields(self)]
        return Observations(*(np.concatenate([getattr(self, n), getattr(other, n)]) for n in names))


@dataclass(frozen=True, slots=True, eq=False)
class Camera:
    """A registered image: its name, pose (world to camera) and pycolmap camera."""

    name: str
    rotation: Float64
    translation: Float64
    intrinsics: Any

    @property
    def centre(self) -> Float64:
        """The projection centre in world coordinates."""
        return np.asarray(-self.rotation.T @ self.translation)

    @property
    def focal(self) -> float:
        """The mean focal length in pixels."""
        return float(self.intrinsics.mean_focal_length())

    def project(self, xyz: Float64) -> tuple[Float64, Float64]:
        """Project world points (N, 3) to pixels (N, 2) and depths (N,).

        The centre of the first pixel is at (0, 0).
        """
        local = xyz @ self.rotation.T + self.translation
        # Points behind the camera are projected along the same ray: pycolmap says NaN for them, and
        # its oldest versions have no option against that.
        ahead = np.where(local[:, 2:] < 0, -local, local)
        return np.asarray(self.intrinsics.img_from_cam(ahead)) - PIXEL_SHIFT, local[:, 2]


def read_cameras(model: Any) -> list[Camera]:
    """Return the registered images of a pycolmap reconstruction, sorted by name."""
    cameras = []
    for image_id in model.reg_image_ids():
        image = model.image(image_id)
        pose = np.asarray(image.cam_from_world().matrix())
        intrinsics = model.camera(image.camera_id)
        cameras.append(Camera(image.name, pose[:, :3], pose[:, 3], intrinsics))
    return sorted(cameras, key=lambda camera: camera.name)


def read_points(model: Any, cameras: list[Camera]) -> tuple[Float64, Int64]:
    """Return the 3D points (P, 3), and their track elements (N, 3).

    A track element is a point number, a camera number and a keypoint row.
    """
    index = {camera.name: number for number, camera in enumerate(cameras)}
    numbers = {i: index[model.image(i).name] for i in model.reg_image_ids()}
    points = list(model.points3D.values())
    xyz = np.array([point.xyz for point in points], np.float64).reshape(-1, 3)
    elements = [
        (number, numbers[element.image_id], element.point2D_idx)
        for number, point in enumerate(points)
        for element in point.track.elements
    ]
    return xyz, np.array(elements, np.int64).reshape(-1, 3)


def measure(
    xyz: Float64, elements: Int64, cameras: list[Camera], keypoints: Mapping[str, Keypoints]
) -> Observations:
    """Compute the geometry of track elements (point, camera, keypoint row), in their order."""
    count = len(elements)
    error, size = np.full(count, np.inf), np.ones(count)
    toward, heading = np.zeros((count, 3)), np.zeros((count, 3))
    for number, camera in enumerate(cameras):
        here = np.flatnonzero(elements[:, 1] == number)
        if not len(here):
            continue
        position = xyz[elements[here, 0]]
        pixels, depth = camera.project(position)
        observed = keypoints[camera.name][elements[here, 2]]
        error[here] = np.where(depth > 0, np.linalg.norm(pixels - observed.xy, axis=1), np.inf)
        size[here] = observed.sigma * np.maximum(depth, 1e-9) / camera.focal
        toward[here] = unit(camera.centre - position)
        cosine, sine = np.cos(observed.angle), np.sin(observed.angle)
        heading[here] = np.stack([cosine, sine, np.zeros(len(here))], axis=1) @ camera.rotation
    return Observations(
        elements[:, 0], elements[:, 1], elements[:, 2], error, size, toward, heading
    )


def plane_angles(observed: Observations, count: int) -> Float64:
    """Return the angle of each heading in the plane normal to its point's mean view direction.

    `count` is the number of points.
    """
    mean = np.zeros((count, 3))
    np.add.at(mean, observed.point, observed.toward)
    normal = unit(mean)
    # Any vector that is not parallel to the normal starts a basis of the plane.
    start = np.where(np.abs(normal[:, :1]) < 0.7, [[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]])
    first = unit(np.cross(normal, start))
    second = np.cross(normal, first)
    across = np.einsum("nk,nk->n", observed.heading, first[observed.point])
    along = np.einsum("nk,nk->n", observed.heading, second[observed.point])
    return np.asarray(np.arctan2(along, across))


def same_group_pairs(group: Int64) -> tuple[Int64, Int64]:
    """Return all ordered pairs (i, j) of rows of the same group, including i = j."""
    order = np.argsort(group, kind="stable")
    _, start, count = np.unique(group[order], return_index=True, return_counts=True)
    repeats = np.repeat(count, count)
    left = np.repeat(np.arange(len(group)), repeats)
    first = np.repeat(np.repeat(start, count), repeats)
    step = np.arange(len(left)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return order[left].astype(np.int64), order[first + step].astype(np.int64)


def lowest_of_each(group: Int64, value: Float64) -> Bool:
    """Mark the one row of lowest value in every group."""
    order = np.lexsort((np.arange(len(group)), value, group))
    is_first = np.ones(len(group), np.bool_)
    is_first[1:] = group[order][1:] != group[order][:-1]
    marked = np.zeros(len(group), np.bool_)
    marked[order[is_first]] = True
    return marked


def unit(rows: Float64) -> Float64:
    """Scale rows to length 1."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))
