"""Fit a homography once more to all matches, with weights that fall off slowly.

Real surfaces are not quite flat and lenses are not quite straight, so right matches lie some pixels
off the homography that most of them agree on. A fit to the inliers alone ignores these, and is
wrong where there are no inliers: far from them it extrapolates. On a flat scene, weights that fall
off within a fraction of the threshold are more precise than a fit to all inliers alike.
"""

from __future__ import annotations

import numpy as np

from matchserve.types import Float32, Float64

# Matches within this many inlier thresholds count.
_REACH = 5.0
# The error, in thresholds, at which a match counts half: of curved scenes, and of flat ones.
_WIDE_SCALE, _SHARP_SCALE = 1.0, 1 / 3
# A scene is curved if this share of the expected right matches in reach are no inliers, or if a fit
# by wide weights has so many times the inliers. All were chosen in docs/research/match-quality.md.
_CURVED_SHARE = 0.25
_CURVED_GAIN = 1.02
# A fit that loses more of the inliers, by confidence, follows matches of another surface.
_KEPT_SHARE = 0.7
_ITERATIONS = 10
_MIN_MATCHES = 8


def refit_homography(
    matrix: Float64, p0: Float64, p1: Float64, confidence: Float32, threshold_px: float
) -> Float64:
    """Return the homography of points (M, 2) each by least squares, reweighted in each step.

    A match counts by its confidence and by the Cauchy weight of its transfer error, which falls
    off sooner if the scene is flat. If too few matches or inliers agree, `matrix` is returned.
    """

    def support(found: Float64, limit_px: float = threshold_px) -> float:
        # Not finite where a point is mapped to infinity.
        error = np.linalg.norm(mapped(found, p0) - p1, axis=1)
        return float(confidence[error < limit_px].sum())

    def fitted(scale: float) -> Float64:
        limits = (scale * threshold_px, _REACH * threshold_px)
        return _reweighted(matrix, p0, p1, confidence, limits)

    before, in_reach = support(matrix), support(matrix, _REACH * threshold_px)
    found = fitted(_WIDE_SCALE)
    is_flat = in_reach - before < _CURVED_SHARE * in_reach
    if is_flat and support(found) < _CURVED_GAIN * before:
        found = fitted(_SHARP_SCALE)
    return found if support(found) >= _KEPT_SHARE * before else matrix


def _reweighted(
    matrix: Float64,
    p0: Float64,
    p1: Float64,
    confidence: Float32,
    scale_and_reach_px: tuple[float, float],
) -> Float64:
    """Repeat the weighted fit from `matrix`; return it unchanged if that fails."""
    scale_px, reach_px = scale_and_reach_px
    found = matrix
    for _ in range(_ITERATIONS):
        error = np.linalg.norm(mapped(found, p0) - p1, axis=1)
        near = error < reach_px
        if near.sum() < _MIN_MATCHES:
            return matrix
        weight = confidence[near] / (1 + (error[near] / scale_px) ** 2)
        found = _weighted_fit(found, p0[near], p1[near], weight)
        if not np.isfinite(found).all():
            return matrix
    return found


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
