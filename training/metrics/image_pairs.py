"""Metrics on matched images: errors of matches, homographies and poses, areas under curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching
from scipy.spatial import cKDTree

from matchserve.types import Bool, Float64


def apply_homography(homography: Float64, xy: NDArray[Any]) -> Float64:
    """Map points (N, 2) by a homography."""
    moved = np.c_[np.asarray(xy, np.float64), np.ones(len(xy))] @ homography.T
    return np.asarray(moved[:, :2] / moved[:, 2:])


def transfer_error(homography: Float64, xy0: NDArray[Any], xy1: NDArray[Any]) -> Float64:
    """Return the distance in image 1 between mapped points of image 0 and their matches, in px."""
    return np.asarray(np.linalg.norm(apply_homography(homography, xy0) - xy1, axis=1))


def most_correct(
    homography: Float64, xy0: NDArray[Any], xy1: NDArray[Any], radius_px: float
) -> int:
    """Return the largest number of correct matches that any one-to-one matcher could find.

    A match is correct if its keypoints lie within `radius_px` of each other after mapping.
    Keypoints that share a position each count, so no matcher can exceed this number.
    """
    if not len(xy0) or not len(xy1):
        return 0
    moved = apply_homography(homography, xy0)
    moved = moved[np.isfinite(moved).all(axis=1)]
    if not len(moved):
        return 0
    near = cKDTree(moved).sparse_distance_matrix(
        cKDTree(np.asarray(xy1, np.float64)), radius_px, output_type="coo_matrix"
    )
    # A distance of zero is an entry too, so set all values to one.
    graph = csr_matrix((np.ones(near.nnz, np.int8), (near.row, near.col)), shape=near.shape)
    return int((maximum_bipartite_matching(graph, perm_type="column") >= 0).sum())


def corner_error(estimated: Float64 | None, truth: Float64, size: tuple[int, int]) -> float:
    """Return the mean error of the four mapped corners of image 0, in pixels.

    Infinite if no homography was estimated.
    """
    if estimated is None:
        return float("inf")
    width, height = size
    corners = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])
    gap = apply_homography(estimated, corners) - apply_homography(truth, corners)
    return float(np.linalg.norm(gap, axis=1).mean())


def error_auc(errors: Sequence[float], limits: Sequence[float]) -> list[float]:
    """Return the area under the recall curve of `errors` up to each limit, as a share of 1.

    The curve starts at (0, 0), goes through the sorted errors and ends at the limit: the rule of
    pose benchmarks since SuperGlue.
    """
    ordered = np.sort(np.asarray(errors, np.float64))
    recall = np.arange(1, len(ordered) + 1) / max(1, len(ordered))
    ordered, recall = np.r_[0.0, ordered], np.r_[0.0, recall]
    areas = []
    for limit in limits:
        last = int(np.searchsorted(ordered, limit))
        x = np.r_[ordered[:last], limit]
        y = np.r_[recall[:last], recall[last - 1]]
        areas.append(float((np.diff(x) * (y[1:] + y[:-1])).sum() / 2 / limit))
    return areas


def mean_average_accuracy(errors: Sequence[float], limit: int) -> float:
    """Return the mean share of `errors` within 1, 2, ... `limit`: the mAA of the IMC benchmark."""
    values = np.asarray(errors, np.float64)
    return float(np.mean([(values <= threshold).mean() for threshold in range(1, limit + 1)]))


def seen_in_both(
    homography: Float64,
    xy0: NDArray[Any],
    xy1: NDArray[Any],
    size0: tuple[int, int],
    size1: tuple[int, int],
) -> float:
    """Return the mean number of the keypoints of an image that lie inside the other image too.

    Sizes are (width, height). Correct matches divided by this number are the matching score of
    detector and descriptor together.
    """
    inside1 = _is_inside(apply_homography(homography, xy0), size1) if len(xy0) else np.zeros(0)
    back: Float64 = np.linalg.inv(homography).astype(np.float64)
    inside0 = _is_inside(apply_homography(back, xy1), size0) if len(xy1) else np.zeros(0)
    return float(inside0.sum() + inside1.sum()) / 2


def _is_inside(xy: Float64, size: tuple[int, int]) -> Bool:
    last = np.array(size) - 1
    return np.asarray(((xy >= 0) & (xy <= last)).all(axis=1))


def rotation_error_deg(estimated: Float64, truth: Float64) -> float:
    """Return the angle between two rotation matrices."""
    cosine = (np.trace(estimated.T @ truth) - 1) / 2
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


def direction_error_deg(estimated: Float64, truth: Float64) -> float:
    """Return the angle between two translations, whose lengths are ignored."""
    cosine = estimated @ truth / (np.linalg.norm(estimated) * np.linalg.norm(truth))
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


def epipolar_ok(
    essential: Float64,
    rays0: Float64,
    rays1: Float64,
    focal_px: float,
    limit_px: float,
) -> Bool:
    """Return whether matched normalised points (N, 2) are within `limit_px` of the epipolar lines.

    The distance is Sampson's, converted to pixels by the focal length.
    """
    p0, p1 = np.c_[rays0, np.ones(len(rays0))], np.c_[rays1, np.ones(len(rays1))]
    line1, line0 = p0 @ essential.T, p1 @ essential
    algebraic = np.einsum("nk,nk->n", p1, line1)
    spread = line1[:, 0] ** 2 + line1[:, 1] ** 2 + line0[:, 0] ** 2 + line0[:, 1] ** 2
    distance = np.abs(algebraic) / np.sqrt(np.maximum(spread, 1e-18)) * focal_px
    return np.asarray(distance <= limit_px)
