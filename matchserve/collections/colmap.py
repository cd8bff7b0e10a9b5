"""COLMAP's conventions and the parts of pycolmap's interface that we use, in one place.

COLMAP puts the centre of the first pixel at (0.5, 0.5), we at (0, 0): points are shifted when they
are written. Names in pycolmap change between minor versions; only this module, `mapping`,
`export_colmap` and `colmap_verification` import it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from matchserve.libraries import import_pycolmap
from matchserve.types import Float32, Float64, Keypoints
from matchserve.vision.cameras import PIXEL_SHIFT as PIXEL_SHIFT

FOCAL_GUESS = 1.2
"""Focal length over the longer side where EXIF does not say: 46 degrees, a common lens."""

_SHIFT = np.array([[1, 0, PIXEL_SHIFT], [0, 1, PIXEL_SHIFT], [0, 0, 1]])
_UNSHIFT = np.linalg.inv(_SHIFT)


def guessed_camera(size: tuple[int, int], focal_px: float | None = None) -> Any:
    """Return a pycolmap camera with one radial distortion term; guess an unknown focal length."""
    pycolmap = import_pycolmap()
    model = pycolmap.CameraModelId.SIMPLE_RADIAL
    focal = focal_px or FOCAL_GUESS * max(size)
    camera = pycolmap.Camera.create_from_model_id(0, model, focal, *size)
    camera.has_prior_focal_length = focal_px is not None
    return camera


def write_image(database: Any, name: str, camera_id: int, keypoints: Keypoints) -> int:
    """Write an image with its keypoints; return its number in the database."""
    pycolmap = import_pycolmap()
    image_id = database.write_image(pycolmap.Image(name=name, camera_id=camera_id))
    database.write_keypoints(image_id, pixels_of(keypoints))
    return int(image_id)


def pixels_of(keypoints: Keypoints) -> Float32:
    """Return the positions (N, 2) of keypoints in COLMAP's pixels."""
    return np.asarray(keypoints.xy + np.float32(PIXEL_SHIFT))


def shifted_fundamental(matrix: Float64) -> Float64:
    """Return a fundamental matrix of our pixels as one of COLMAP's pixels."""
    return np.asarray(_UNSHIFT.T @ matrix @ _UNSHIFT)


def shifted_homography(matrix: Float64) -> Float64:
    """Return a homography of our pixels as one of COLMAP's pixels."""
    return np.asarray(_SHIFT @ matrix @ _UNSHIFT)


def unshifted_fundamental(matrix: Float64) -> Float64:
    """Return a fundamental matrix of COLMAP's pixels as one of our pixels."""
    return np.asarray(_SHIFT.T @ matrix @ _SHIFT)


def unshifted_homography(matrix: Float64) -> Float64:
    """Return a homography of COLMAP's pixels as one of our pixels."""
    return np.asarray(_UNSHIFT @ matrix @ _SHIFT)


def quiet() -> None:
    """Let COLMAP print warnings and errors only."""
    pycolmap = import_pycolmap()
    pycolmap.logging.minloglevel = pycolmap.logging.Level.WARNING.value


def read_model(folder: Path) -> Any | None:
    """Read a reconstruction, or return None if there is none."""
    is_there = (folder / "points3D.bin").is_file()
    return import_pycolmap().Reconstruction(folder) if is_there else None
