"""Read images with known cameras: Strecha's `.camera` files, COLMAP models, IMC's h5 files.

A scene is a folder with `images/` and one of

    gt_cameras/NAME.camera     K, distortion, R, camera centre and image size, as text
    sparse/                    a COLMAP model (binary or text), also as sparse/0
    calibration/*.h5           one file per image with K, R, T (Image Matching Challenge)

Intrinsics given for another image size are scaled to the size of the file on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.types import Float64
from matchserve.vision.cameras import Camera
from training.data.images import SUFFIXES, read_image
from training.errors import DataError


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """An image with its pinhole camera and pose: x_camera = rotation @ x_world + translation.

    `undistort` maps points of the image to those of the pinhole camera.
    """

    path: Path
    camera: Camera
    rotation: Float64
    translation: Float64
    undistort: Callable[[NDArray[Any]], Float64] = np.asarray

    @property
    def centre(self) -> Float64:
        """The projection centre in world coordinates."""
        return np.asarray(-self.rotation.T @ self.translation)

    @property
    def axis(self) -> Float64:
        """The viewing direction, a unit vector in world coordinates."""
        return np.asarray(self.rotation[2])


def find_scenes(directories: list[Path]) -> dict[str, dict[str, View]]:
    """Return the views of each scene, by image name.

    Raises:
        DataError: there is no scene with known cameras, or a file cannot be read.
    """
    scenes = {}
    for directory in directories:
        if not directory.is_dir():
            raise DataError(f"{directory}: not a directory")
        for folder in [directory, *sorted(p for p in directory.iterdir() if p.is_dir())]:
            views = _read_scene(folder) if (folder / "images").is_dir() else {}
            if views:
                scenes[folder.resolve().name] = views
    if not scenes:
        where = ", ".join(str(d) for d in directories)
        raise DataError(f"no scene with images/ and known cameras in {where}")
    return scenes


def relative_pose(one: View, other: View) -> tuple[Float64, Float64]:
    """Return the rotation and translation from camera `one` to camera `other`."""
    rotation = other.rotation @ one.rotation.T
    return rotation, np.asarray(other.translation - rotation @ one.translation)


def read_strecha(path: Path) -> tuple[Float64, Float64, Float64, tuple[int, int]]:
    """Read K, rotation, translation (world to camera) and image size from a `.camera` file.

    The R of the file maps camera to world, and its vector is the camera centre.

    Raises:
        DataError: the file does not have the 26 numbers of the format.
    """
    try:
        numbers = np.array(path.read_text(encoding="utf-8").split(), np.float64)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected numbers, {error}") from error
    if len(numbers) != 26:
        raise DataError(f"{path}: expected 26 numbers, found {len(numbers)}")
    rotation = numbers[12:21].reshape(3, 3).T
    translation = -rotation @ numbers[21:24]
    return numbers[:9].reshape(3, 3), rotation, translation, (int(numbers[24]), int(numbers[25]))


def _read_scene(folder: Path) -> dict[str, View]:
    images = {
        p.name: p for p in sorted((folder / "images").rglob("*")) if p.suffix.lower() in SUFFIXES
    }
    if (folder / "gt_cameras").is_dir():
        return _with_strecha(folder / "gt_cameras", images)
    for model in (folder / "sparse", folder / "sparse" / "0"):
        if (model / "cameras.bin").is_file() or (model / "cameras.txt").is_file():
            return _with_colmap(model, images)
    if (folder / "calibration").is_dir():
        return _with_h5(folder / "calibration", images)
    return {}


def _with_strecha(folder: Path, images: dict[str, Path]) -> dict[str, View]:
    views = {}
    for name, path in images.items():
        matrix, rotation, translation, size = read_strecha(folder / f"{name}.camera")
        camera = _scaled(matrix, size, read_image(path).size)
        views[name] = View(path, camera, rotation, translation)
    return views


def _with_colmap(folder: Path, images: dict[str, Path]) -> dict[str, View]:
    import pycolmap

    model = pycolmap.Reconstruction(folder)
    views = {}
    for image_id in model.reg_image_ids():
        image = model.image(image_id)
        name = Path(image.name).name
        if name not in images:
            continue
        colmap = model.camera(image.camera_id)
        pose = np.asarray(image.cam_from_world().matrix())
        lens = Camera.from_colmap(colmap.model.name, [float(v) for v in colmap.params])
        rotation, translation = pose[:, :3], pose[:, 3]
        views[name] = View(images[name], lens.pinhole(), rotation, translation, lens.undistorted)
    return views


def _with_h5(folder: Path, images: dict[str, Path]) -> dict[str, View]:
    import h5py

    views = {}
    for name, path in images.items():
        file = folder / f"calibration_{Path(name).stem}.h5"
        try:
            with h5py.File(file, "r") as content:
                matrix, rotation, translation = (
                    np.asarray(content[key], np.float64) for key in ("K", "R", "T")
                )
        except (OSError, KeyError) as error:
            raise DataError(f"{file}: expected K, R and T, {error}") from error
        size = read_image(path).size
        views[name] = View(path, _scaled(matrix, size, size), rotation, translation.ravel())
    return views


def _scaled(matrix: Float64, measured: tuple[int, int], stored: tuple[int, int]) -> Camera:
    """Scale intrinsics measured at one image size to another."""
    focal = (float(matrix[0, 0]), float(matrix[1, 1]))
    centre = (float(matrix[0, 2]), float(matrix[1, 2]))
    return Camera(*focal, *centre, size=measured).fitted_to(stored)
