"""How far a match is from the true geometry, in pixels: infinite where it cannot be right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.collections.colmap import PIXEL_SHIFT
from matchserve.libraries import import_faiss
from matchserve.types import Bool, Float64
from training.data.scenes.observations import Camera
from training.metrics.image_pairs import transfer_error

Truth = Callable[[NDArray[Any], NDArray[Any]], Float64]
"""Errors in pixels, (M,), of matched points (M, 2)."""

# Nearest points of the reconstruction that say how deep the surface is around a match, by which
# factor a match may be nearer or farther than they are, and by how many pixels of disparity.
_NEIGHBOURS, _DEPTH_FACTOR, _SLACK_PX = 8, 1.15, 4.0


def unrelated_error(xy0: NDArray[Any], xy1: NDArray[Any]) -> Float64:
    """Images of different scenes: no match is right."""
    return np.full(len(xy0), np.inf)


@dataclass(frozen=True, slots=True, eq=False)
class HomographyTruth:
    """A known homography from image 0 to image 1."""

    matrix: Float64

    def __call__(self, xy0: NDArray[Any], xy1: NDArray[Any]) -> Float64:
        """Return errors that swapping the images does not change.

        Of the transfer errors in both images, e0 and e1, this is sqrt(2) e0 e1 / |(e0, e1)|:
        either of them where the scale is the same, nearly the smaller one otherwise.
        """
        forward = transfer_error(self.matrix, xy0, xy1)
        backward = transfer_error(np.asarray(np.linalg.inv(self.matrix), np.float64), xy1, xy0)
        both = forward * backward / np.maximum(np.hypot(forward, backward), 1e-9)
        return np.asarray(np.sqrt(2) * both)


@dataclass(frozen=True, slots=True, eq=False)
class CameraTruth:
    """Two registered cameras, and the points of the reconstruction that each image shows."""

    cameras: tuple[Camera, Camera]
    points: tuple[Float64, Float64]

    def __call__(self, xy0: NDArray[Any], xy1: NDArray[Any]) -> Float64:
        """Return Sampson errors; infinite where the triangulated depth is not plausible."""
        one, other = self.cameras
        rotation = other.rotation @ one.rotation.T
        shift = other.translation - rotation @ one.translation
        focal = (one.focal + other.focal) / 2
        rays = [_rays(c, xy) for c, xy in zip(self.cameras, (xy0, xy1), strict=True)]
        depths = _depths(rays[0] @ rotation.T, rays[1], shift)
        slack = _SLACK_PX * depths**2 / (focal * np.linalg.norm(shift))
        is_plausible = (depths > 0).all(axis=1)
        for side, xy in enumerate((xy0, xy1)):
            is_plausible &= _is_near_surface(
                self.cameras[side], self.points[side], xy, depths[:, side], slack[:, side]
            )
        error = _sampson(rays[0], rays[1], rotation, shift) * focal
        return np.where(is_plausible, error, np.inf)


def _rays(camera: Camera, xy: NDArray[Any]) -> Float64:
    pixels = np.asarray(xy, np.float64) + PIXEL_SHIFT
    rays = np.asarray(camera.intrinsics.cam_from_img(pixels), np.float64)
    return np.column_stack([rays, np.ones(len(xy))])


def _sampson(rays0: Float64, rays1: Float64, rotation: Float64, shift: Float64) -> Float64:
    """Distance to the epipolar lines, in units of the focal length, as seen in one image."""
    x, y, z = shift / np.linalg.norm(shift)
    essential = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ rotation
    line1, line0 = rays0 @ essential.T, rays1 @ essential
    spread = (line1[:, :2] ** 2).sum(axis=1) + (line0[:, :2] ** 2).sum(axis=1)
    algebraic = np.abs(np.einsum("nk,nk->n", rays1, line1))
    return np.asarray(np.sqrt(2) * algebraic / np.sqrt(np.maximum(spread, 1e-18)))


def _depths(rays0: Float64, rays1: Float64, shift: Float64) -> Float64:
    """Depths (M, 2) along both rays where they come nearest; `rays0` turned into camera 1."""
    sides = np.stack([rays0, -rays1], axis=2)
    normal = np.einsum("nij,nik->njk", sides, sides) + 1e-12 * np.eye(2)
    right = -np.einsum("nij,i->nj", sides, shift)
    return np.asarray(np.linalg.solve(normal, right[:, :, None])[:, :, 0])


def _is_near_surface(
    camera: Camera, points: Float64, xy: NDArray[Any], depth: Float64, slack: Float64
) -> Bool:
    """Whether depths lie in the range of the nearest reconstructed points of the image."""
    pixels, known = camera.project(points)
    count = min(_NEIGHBOURS, len(points))
    _, index = import_faiss().knn(
        np.ascontiguousarray(xy, np.float32), np.ascontiguousarray(pixels, np.float32), count
    )
    gap = np.linalg.norm(pixels[index] - np.asarray(xy)[:, None], axis=2).min(axis=1)
    # Far from every reconstructed point its depth says less.
    factor = _DEPTH_FACTOR + np.minimum(gap / 200, 1.0)
    nearest, farthest = known[index].min(axis=1), known[index].max(axis=1)
    return np.asarray(
        (depth > nearest / factor - slack) & (depth < farthest * factor + slack), np.bool_
    )
