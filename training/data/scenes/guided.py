"""Guided matching: find observations of 3D points that descriptor matching missed.

An image that should see a point, but in which it was not matched, is searched for a free keypoint
of the expected position, size and angle. These are the views that a descriptor has yet to learn.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from matchserve.libraries import import_faiss
from matchserve.types import Bool, Float64, Keypoints
from training.data.photos.correspondence import correspond
from training.data.scenes.observations import (
    Camera,
    Int64,
    Observations,
    lowest_of_each,
    measure,
    unit,
)
from training.data.scenes.tracks import TrackOptions

# A point counts as visible if 4 of its 6 nearest matched neighbours in the image have its depth
# within 3 %: otherwise something in front may hide it.
_NEIGHBOURS, _AT_DEPTH, _DEPTH_SHARE = 6, 4, 0.03


def find_observations(
    observed: Observations,
    xyz: Float64,
    cameras: list[Camera],
    keypoints: Mapping[str, Keypoints],
    options: TrackOptions,
) -> Observations:
    """Return new observations in images where a point must be visible and a free keypoint fits."""
    if not len(observed) or options.max_angle_deg <= 0:
        return observed[np.zeros(0, np.int64)]
    best = observed[lowest_of_each(observed.point, observed.error)]
    elements = []
    for number, camera in enumerate(cameras):
        here = observed[observed.image == number]
        is_candidate = ~np.isin(best.point, here.point)
        is_candidate &= _is_facing(observed, best.point, xyz, camera, options.max_angle_deg)
        candidates = best[is_candidate]
        expected, depth = _expected_keypoints(candidates, xyz, camera)
        visible = _is_visible(expected, depth, here, xyz, camera)
        candidates, expected = candidates[visible], expected[visible]
        is_free = np.ones(len(keypoints[camera.name]), np.bool_)
        is_free[here.row] = False
        rows = np.flatnonzero(is_free)
        pairs = correspond(expected, keypoints[camera.name][rows], options.tolerance)
        image = np.full(len(pairs), number, np.int64)
        elements.append(np.stack([candidates.point[pairs[:, 0]], image, rows[pairs[:, 1]]], axis=1))
    added = measure(xyz, np.concatenate(elements), cameras, keypoints)
    return added[added.error <= options.max_error_px]


def _is_facing(
    observed: Observations, points: Int64, xyz: Float64, camera: Camera, max_angle_deg: float
) -> Bool:
    """Return whether a point was observed from within `max_angle_deg` of the view of `camera`."""
    line = unit(camera.centre - xyz)
    cosine = np.einsum("nk,nk->n", observed.toward, line[observed.point])
    best = np.full(len(xyz), -1.0)
    np.maximum.at(best, observed.point, cosine)
    return np.asarray(best[points] >= np.cos(np.radians(max_angle_deg)))


def _expected_keypoints(
    candidates: Observations, xyz: Float64, camera: Camera
) -> tuple[Keypoints, Float64]:
    """Return the keypoint that each point should have in `camera`, and its depth.

    Points behind the camera get a tiny keypoint far outside the image.
    """
    position = xyz[candidates.point]
    pixels, depth = camera.project(position)
    ahead, _ = camera.project(position + 0.1 * candidates.size[:, None] * candidates.heading)
    direction = ahead - pixels
    sigma = candidates.size * camera.focal / np.maximum(depth, 1e-9)
    sigma = np.where(depth > 0, sigma, 1e-6)
    pixels = np.where(depth[:, None] > 0, pixels, -1e6)
    angle = np.arctan2(direction[:, 1], direction[:, 0])
    columns = np.column_stack([pixels, sigma, angle, np.ones(len(position))]).astype(np.float32)
    return Keypoints(columns[:, :2], *columns[:, 2:].T), depth


def _is_visible(
    expected: Keypoints, depth: Float64, here: Observations, xyz: Float64, camera: Camera
) -> Bool:
    """Return whether the matched points nearby in the image are at the same depth."""
    if len(here) < _NEIGHBOURS or not len(expected):
        return np.zeros(len(expected), np.bool_)
    pixels, known = camera.project(xyz[here.point])
    _, index = import_faiss().knn(
        np.ascontiguousarray(expected.xy), np.ascontiguousarray(pixels, np.float32), _NEIGHBOURS
    )
    close = np.abs(known[index] / np.maximum(depth, 1e-9)[:, None] - 1) <= _DEPTH_SHARE
    return np.asarray((close.sum(axis=1) >= _AT_DEPTH) & (depth > 0))
