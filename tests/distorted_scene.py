"""A corner of a room seen by two cameras whose lenses distort; all is known exactly."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from matchserve.types import Float64, UInt8
from matchserve.vision.cameras import Camera
from tests.corner_scene import FOCAL, SIZE, poses, render

# Barrel distortion that moves the corners of the images by about 50 pixels.
CAMERAS = (
    Camera.from_colmap("OPENCV", [FOCAL, FOCAL, 240, 180, -0.25, 0.04, 0.002, -0.001], SIZE),
    Camera.from_colmap("SIMPLE_RADIAL", [FOCAL, 240, 180, -0.3], SIZE),
)


@dataclass(frozen=True)
class DistortedPair:
    """Two images, their cameras, and the pose from the first to the second camera."""

    images: tuple[UInt8, UInt8]
    rotation: Float64
    translation: Float64

    def errors(self, pose: Float64) -> tuple[float, float]:
        """Errors of the rotation and of the direction of translation, in degrees."""
        turn = pose[:, :3] @ self.rotation.T
        angle = np.arccos(np.clip((np.trace(turn) - 1) / 2, -1, 1))
        along = np.clip(pose[:, 3] @ self.translation, -1, 1)
        return float(np.degrees(angle)), float(np.degrees(np.arccos(along)))


def distorted_pair() -> DistortedPair:
    """Render the scene as both cameras see it."""
    (turn0, centre0), (turn1, centre1) = poses(4)[:2]
    images = []
    for camera, turn, centre in zip(CAMERAS, (turn0, turn1), (centre0, centre1), strict=True):
        x, y = np.meshgrid(np.arange(SIZE[0]), np.arange(SIZE[1]))
        ideal = camera.undistorted(np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float64))
        maps = ideal.astype(np.float32).reshape(*x.shape, 2)
        pixels = cv2.remap(render(turn, centre), maps[..., 0], maps[..., 1], cv2.INTER_LINEAR)
        images.append(np.asarray(pixels, np.uint8))
    rotation = turn1 @ turn0.T
    translation = turn1 @ (centre0 - centre1)
    unit = translation / np.linalg.norm(translation)
    return DistortedPair((images[0], images[1]), rotation, unit)
