"""Fit a homography once more to all matches, with weights that fall off slowly.

Real surfaces are not quite flat and lenses are not quite straight, so right matches lie some pixels
off the homography that most of them agree on. A fit to the inliers alone ignores these, and is
wrong where there are no inliers: far from them it extrapolates.
"""

from __future__ import annotations

import numpy as np

from matchserve.types import Float32, Float64

# Matches within this many inlier thresholds count; one threshold away, half as much as at 0.
_REACH = 5.0
# Share of the expected right matches in reach that must be no inliers: otherwise the scene is flat,
# and a fit to the inliers is more precise (docs/research/match-quality.md).
_MIN_OFF_SHARE = 0.1
_ITERATIONS = 10
_MIN_MATCHES = 8


def refit_homography(
    matrix: Float64, p0: Float64, p1: Float64, confidence: Float32, threshold_px: float
) -> Float64:
    """Return the homography of points (M, 2) each by least squares, reweighted in each step.

    A match counts by its confidence and by the Cauchy weight of its transfer error. A homography
    that too few matches agree with, or that nearly all agree with, is returned as it is.
    """
    found = matrix
    if _off_share(matrix, p0, p1, confidence, threshold_px) < _MIN_OFF_SHARE:
        return matrix
    for _ in range(_ITERATIONS):
        error = np.linalg.norm(mapped(found, p0) - p1, axis=1)
        # Not finite where a point is mapped to infinity.
        near = error < _REACH * threshold_px
        if near.sum() < _MIN_MATCHES:
            return matrix
        weight = confidence[near] / (1 + (error[near] / threshold_px) ** 2)
        found = _weighted_fit(found, p0[near], p1[near], weight)
        if not np.isfinite(found).all():
            return matrix
    return found


def _off_share(
    matrix: Float64, p0: Float64, p1: Float64, confidence: Float32, threshold_px: float
) -> float:
    """Return which share of the confidence in reach is that of matches that are no inliers."""
    error = np.linalg.norm(mapped(matrix, p0) - p1, axis=1)
    near = error < _REACH * threshold_px
    off = near & (error >= threshold_px)
    return float(confidence[off].sum() / max(float(confidence[near].sum()), 1e-9))


def mapped(matrix: Float64, points: Float64) -> Float64:
    """Map points (M, 2) by a homography; those at infinity are not finite."""
    rows = np.column_stack([points, np.ones(len(points))]) @ matrix.T
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(rows[:, :2] / rows[:, 2:])


def _weighted_fit(matrix: Float64, p0: Float64, p1: Float64, weight: Float64) -> Float64:
    """Solve the linear equations, divided by the depths under `matrix`: errors are in pixels."""
    to0, to1 = _normalisation(p0), _normalisation(p1)
    x = np.column_stack([mapped(to0, p0), np.ones(len(p0))])
    y = mapped(to1, p1)
    depth = x @ (to1 @ matrix @ np.linalg.inv(to0))[2]
    factor = (np.sqrt(weight) / depth)[:, None]
    zero = np.zeros_like(x)
    rows = np.concatenate(
        [
            np.concatenate([x, zero, -y[:, :1] * x], axis=1) * factor,
            np.concatenate([zero, x, -y[:, 1:] * x], axis=1) * factor,
        ]
    )
    _, vectors = np.linalg.eigh(rows.T @ rows)
    found = np.linalg.inv(to1) @ vectors[:, 0].reshape(3, 3) @ to0
    return np.asarray(found / found[2, 2])


def _normalisation(points: Float64) -> Float64:
    """Return the map (3, 3) to points of mean 0 and mean squared length 2."""
    centre = points.mean(axis=0)
    spread = np.sqrt(((points - centre) ** 2).sum(axis=1).mean() / 2)
    scale = 1 / max(float(spread), 1e-9)
    return np.array([[scale, 0, -scale * centre[0]], [0, scale, -scale * centre[1]], [0, 0, 1]])
