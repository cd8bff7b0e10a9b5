"""Matched points of flat and of spatial scenes, with wrong ones among them."""

from __future__ import annotations

import cv2
import numpy as np

from matchserve.types import Float64
from matchserve.vision.cameras import Camera

SIZES = ((800, 600), (800, 600))
CAMERA = Camera(700, 700, 399.5, 299.5)


def planar(
    count: int = 200, outliers: int = 100, seed: int = 0
) -> tuple[Float64, Float64, Float64]:
    """Points under a homography, a third of them wrong."""
    rng = np.random.default_rng(seed)
    homography = np.array([[0.9, -0.2, 60], [0.15, 1.05, -30], [1e-4, -5e-5, 1.0]])
    first = rng.uniform((50, 50), (750, 550), (count + outliers, 2))
    second = cv2.perspectiveTransform(first[None], homography)[0]
    second += rng.normal(0, 0.3, second.shape)
    second[count:] = rng.uniform((0, 0), (800, 600), (outliers, 2))
    return first, second, homography


def spatial(count: int = 200, outliers: int = 100) -> tuple[Float64, Float64, Float64, Float64]:
    """Points in space seen by two cameras: image points, rotation, unit translation."""
    rng = np.random.default_rng(1)
    points = rng.uniform((-2, -1.5, 4), (2, 1.5, 9), (count + outliers, 3))
    rotation, _ = cv2.Rodrigues(np.array([0.05, -0.2, 0.1]))
    translation = np.array([0.8, 0.1, 0.2])
    k = CAMERA.matrix

    def project(xyz: Float64) -> Float64:
        uvw = xyz @ k.T
        return np.asarray(uvw[:, :2] / uvw[:, 2:])

    first, second = project(points), project(points @ rotation.T + translation)
    second += rng.normal(0, 0.3, second.shape)
    second[count:] = rng.uniform((0, 0), (800, 600), (outliers, 2))
    return first, second, np.asarray(rotation), translation / np.linalg.norm(translation)


def spatial_plane(count: int) -> tuple[Float64, Float64, Float64]:
    """Points of one plane seen by the two cameras of `spatial`, and its homography."""
    rotation, _ = cv2.Rodrigues(np.array([0.05, -0.2, 0.1]))
    normal = np.array([0.1, 0.2, 1.0]) / 6
    k = CAMERA.matrix
    homography = k @ (rotation + np.outer([0.8, 0.1, 0.2], normal)) @ np.linalg.inv(k)
    rng = np.random.default_rng(2)
    first = rng.uniform((50, 50), (750, 550), (count, 2))
    moved = np.column_stack([first, np.ones(count)]) @ homography.T
    second = moved[:, :2] / moved[:, 2:] + rng.normal(0, 0.3, first.shape)
    return first, second, homography
