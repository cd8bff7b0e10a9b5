"""Which keypoints of two views are the same one, by geometry alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import InvalidParameter
from matchserve.libraries import import_faiss
from matchserve.types import Bool, Float32, Float64, Keypoints

# Keypoints come in clusters (orientations, scales): the right one is among this many nearest.
_NEIGHBOURS = 16


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two detections of one point may differ.

    `position` in sigmas of the keypoint, `scale` in octaves, `angle_deg` in degrees.
    """

    position: float = 1.2
    scale: float = 0.7
    angle_deg: float = 40.0

    def __post_init__(self) -> None:
        if min(self.position, self.scale, self.angle_deg) <= 0:
            raise InvalidParameter("tolerances of position, scale and angle must be above 0")


def transfer(keypoints: Keypoints, homography: Float64) -> Keypoints:
    """Move keypoints through `homography`: place, scale (by area) and angle, to first order."""
    xy = keypoints.xy.astype(np.float64)
    moved = np.c_[xy, np.ones(len(xy))] @ homography.T
    weight = moved[:, 2:]
    place = moved[:, :2] / weight
    # d(place)/d(xy), row by row
    slope = (homography[None, :2, :2] - place[:, :, None] * homography[None, 2:, :2]) / weight[
        :, :, None
    ]
    direction = np.stack([np.cos(keypoints.angle), np.sin(keypoints.angle)], axis=1)
    turned = np.einsum("nij,nj->ni", slope, direction)
    growth = np.sqrt(np.abs(np.linalg.det(slope)))
    return Keypoints(
        place.astype(np.float32),
        (keypoints.sigma * growth).astype(np.float32),
        np.arctan2(turned[:, 1], turned[:, 0]).astype(np.float32),
        keypoints.score,
    )


def correspond(left: Keypoints, right: Keypoints, tolerance: Tolerance) -> NDArray[np.intp]:
    """Pairs (i, j), (M, 2), of keypoints in one image that are each other's best fit in tolerance.

    Bring them into one image with `transfer` first.
    """
    if not len(left) or not len(right):
        return np.zeros((0, 2), np.intp)
    row, column = _candidates(left.xy, right.xy)
    misfit = _misfit(left[row], right[column], tolerance)
    fits = misfit <= 1.0
    row, column, misfit = row[fits], column[fits], misfit[fits]
    best_left = _lowest(row, misfit, len(left))
    best_right = _lowest(column, misfit, len(right))
    mutual = (best_left[row] == misfit) & (best_right[column] == misfit)
    pairs = np.stack([row[mutual], column[mutual]], axis=1)
    # Equal misfits are possible when one keypoint was found twice: the first pair wins.
    _, first = np.unique(pairs[:, 0], return_index=True)
    pairs = pairs[first]
    _, first = np.unique(pairs[:, 1], return_index=True)
    return np.asarray(pairs[np.sort(first)])


def distinct(keypoints: Keypoints, tolerance: Tolerance) -> Bool:
    """Which keypoints to keep so that no two are within `tolerance`; the earlier one stays."""
    kept = np.ones(len(keypoints), np.bool_)
    for rival, index in sorted(near_pairs(keypoints, tolerance).tolist(), key=lambda p: p[1]):
        if kept[rival]:
            kept[index] = False
    return kept


def near_pairs(keypoints: Keypoints, tolerance: Tolerance) -> NDArray[np.intp]:
    """Pairs (i, j), i < j, of keypoints of one image that are within `tolerance`."""
    if len(keypoints) < 2:
        return np.zeros((0, 2), np.intp)
    row, column = _candidates(keypoints.xy, keypoints.xy)
    earlier, later = np.minimum(row, column), np.maximum(row, column)
    pairs = np.unique(np.stack([earlier, later], axis=1)[earlier < later], axis=0)
    close = _misfit(keypoints[pairs[:, 0]], keypoints[pairs[:, 1]], tolerance) <= 1.0
    return np.asarray(pairs[close])


def angle_between(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Absolute difference of angles in radians, 0 to pi."""
    turn = np.abs(left - right) % (2 * np.pi)
    return np.asarray(np.minimum(turn, 2 * np.pi - turn))


def _misfit(left: Keypoints, right: Keypoints, tolerance: Tolerance) -> Float64:
    """The largest of the three differences, each in units of its tolerance."""
    sigma = np.sqrt(left.sigma * right.sigma).astype(np.float64)
    place = np.linalg.norm(left.xy - right.xy, axis=1) / (tolerance.position * sigma)
    scale = np.abs(np.log2(left.sigma / right.sigma)) / tolerance.scale
    angle = angle_between(left.angle, right.angle) / np.radians(tolerance.angle_deg)
    return np.asarray(np.maximum(np.maximum(place, scale), angle), np.float64)


def _candidates(left: Float32, right: Float32) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Index pairs of the nearest rows of `right` for each row of `left`."""
    count = min(_NEIGHBOURS, len(right))
    # FAISS squares: centred coordinates keep the digits that single precision has.
    middle = right.mean(axis=0)
    _, index = import_faiss().knn(
        np.ascontiguousarray(left - middle), np.ascontiguousarray(right - middle), count
    )
    row = np.repeat(np.arange(len(left)), count)
    column = index.ravel().astype(np.intp)
    found = column >= 0
    return row[found], column[found]


def _lowest(group: NDArray[np.intp], value: Float64, count: int) -> Float64:
    lowest = np.full(count, np.inf)
    np.minimum.at(lowest, group, value)
    return lowest
