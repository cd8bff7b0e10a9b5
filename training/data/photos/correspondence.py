"""Find corresponding keypoints of two views by geometry alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import InvalidParameter
from matchserve.libraries import import_faiss
from matchserve.types import Bool, Float32, Float64, Keypoints

# Several keypoints can lie at one position (orientations, scales); this many nearest ones contain
# the right one.
_NEIGHBOURS = 16


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two detections of one point may differ.

    `position` is in sigmas of the keypoint, `scale` in octaves.
    """

    position: float = 1.2
    scale: float = 0.7
    angle_deg: float = 40.0

    def __post_init__(self) -> None:
        if min(self.position, self.scale, self.angle_deg) <= 0:
            raise InvalidParameter("tolerances of position, scale and angle must be above 0")


def transfer(keypoints: Keypoints, homography: Float64) -> Keypoints:
    """Map keypoints by `homography`: position, scale (from the area) and angle, to first order."""
    xy = keypoints.xy.astype(np.float64)
    moved = np.c_[xy, np.ones(len(xy))] @ homography.T
    weight = moved[:, 2:]
    position = moved[:, :2] / weight
    # The derivative d(position)/d(xy), row by row.
    slope = (homography[None, :2, :2] - position[:, :, None] * homography[None, 2:, :2]) / weight[
        :, :, None
    ]
    direction = np.stack([np.cos(keypoints.angle), np.sin(keypoints.angle)], axis=1)
    turned = np.einsum("nij,nj->ni", slope, direction)
    growth = np.sqrt(np.abs(np.linalg.det(slope)))
    return Keypoints(
        position.astype(np.float32),
        (keypoints.sigma * growth).astype(np.float32),
        np.arctan2(turned[:, 1], turned[:, 0]).astype(np.float32),
        keypoints.score,
    )


def correspond(left: Keypoints, right: Keypoints, tolerance: Tolerance) -> NDArray[np.intp]:
    """Return pairs (M, 2) of keypoints that fit each other best, within the tolerance.

    Both must be in the coordinates of one image: use `transfer` first.
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
    # Misfits are equal if one keypoint was detected twice: the first pair wins.
    _, first = np.unique(pairs[:, 0], return_index=True)
    pairs = pairs[first]
    _, first = np.unique(pairs[:, 1], return_index=True)
    return np.asarray(pairs[np.sort(first)])


def distinct(keypoints: Keypoints, tolerance: Tolerance) -> Bool:
    """Mark keypoints to keep so that no two are within `tolerance`; the earlier one is kept."""
    kept = np.ones(len(keypoints), np.bool_)
    pairs = sorted(near_pairs(keypoints, tolerance).tolist(), key=lambda pair: pair[1])
    for earlier, later in pairs:
        if kept[earlier]:
            kept[later] = False
    return kept


def near_pairs(keypoints: Keypoints, tolerance: Tolerance) -> NDArray[np.intp]:
    """Return pairs (M, 2), i < j, of keypoints of one image that are within `tolerance`."""
    if len(keypoints) < 2:
        return np.zeros((0, 2), np.intp)
    row, column = _candidates(keypoints.xy, keypoints.xy)
    earlier, later = np.minimum(row, column), np.maximum(row, column)
    pairs = np.unique(np.stack([earlier, later], axis=1)[earlier < later], axis=0)
    close = _misfit(keypoints[pairs[:, 0]], keypoints[pairs[:, 1]], tolerance) <= 1.0
    return np.asarray(pairs[close])


def angle_between(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Return the absolute difference of angles in radians, 0 to pi."""
    difference = np.abs(left - right) % (2 * np.pi)
    return np.asarray(np.minimum(difference, 2 * np.pi - difference))


def _misfit(left: Keypoints, right: Keypoints, tolerance: Tolerance) -> Float64:
    """Return the largest of the three differences, each divided by its tolerance."""
    sigma = np.sqrt(left.sigma * right.sigma).astype(np.float64)
    position = np.linalg.norm(left.xy - right.xy, axis=1) / (tolerance.position * sigma)
    scale = np.abs(np.log2(left.sigma / right.sigma)) / tolerance.scale
    angle = angle_between(left.angle, right.angle) / np.radians(tolerance.angle_deg)
    return np.asarray(np.maximum(np.maximum(position, scale), angle), np.float64)


def _candidates(left: Float32, right: Float32) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return index pairs of each row of `left` with its nearest rows of `right`."""
    count = min(_NEIGHBOURS, len(right))
    # FAISS squares coordinates in single precision: centred ones lose fewer digits.
    middle = right.mean(axis=0)
    _, index = import_faiss().knn(
        np.ascontiguousarray(left - middle), np.ascontiguousarray(right - middle), count
    )
    row = np.repeat(np.arange(len(left)), count)
    column = index.ravel().astype(np.intp)
    is_valid = column >= 0
    return row[is_valid], column[is_valid]


def _lowest(group: NDArray[np.intp], value: Float64, count: int) -> Float64:
    lowest = np.full(count, np.inf)
    np.minimum.at(lowest, group, value)
    return lowest
