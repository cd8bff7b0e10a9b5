"""Robust fits of one geometry to matched points: PoseLib with progressive sampling, or OpenCV.

With a confidence for each match, PoseLib draws samples among the most confident matches first
(PROSAC, Chum and Matas 2005). Without, OpenCV draws uniformly and scores by MAGSAC.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import poselib

from matchserve.types import Bool, Float32, Float64
from matchserve.vision.refit import mapped, refit_homography

MAX_ITERATIONS = 10_000
# Progressive samples of good matches are right at once; more of them only cost refinements.
_MIN_ITERATIONS = 20
# But the most confident ones may all lie on one plane, which does not determine a fundamental
# matrix: less confidence than this share of all agrees then, and more samples are drawn
# (docs/research/match-quality.md).
_FUNDAMENTAL_ITERATIONS, _UNCLEAR_ITERATIONS = 300, 1000
_CLEAR_SHARE = 0.9
SUCCESS_PROBABILITY = 0.9999

# On 105 pairs of training scenes, fits to 200 matches take 1.4 ms instead of 4.8 ms and find as
# many inliers (364.6 on average); 3 pairs need more than 1000 iterations, one of them loses 5.
_FAST_FITTED, _FAST_ITERATIONS = 200, 1000


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A matrix (3, 3), or None, with its inliers (M,); `pose` (3, 4) only for a relative pose."""

    matrix: Float64 | None
    inliers: Bool
    pose: Float64 | None = None


@dataclass(frozen=True, slots=True)
class FitOptions:
    """Inlier threshold in pixels, the seed of the random samples, and whether to save time.

    A `fast` fundamental matrix of matches with a confidence is fitted to a part of them.
    """

    threshold_px: float
    seed: int = 0
    fast: bool = False


def nothing(count: int) -> Fit:
    """Return the fit of points that determine no geometry."""
    return Fit(None, np.zeros(count, np.bool_))


def fit_matrix(
    kind: str, p0: Float64, p1: Float64, options: FitOptions, confidence: Float32 | None
) -> Fit:
    """Fit a homography or a fundamental matrix to points (M, 2) each."""
    if confidence is None:
        return _fit_by_opencv(kind, p0, p1, options)
    estimate = poselib.estimate_homography if kind == "homography" else poselib.estimate_fundamental
    order = np.argsort(-confidence, kind="stable")
    if kind == "fundamental" and options.fast:
        # Evenly over all confidences: the surest ones alone often lie in one part of the image.
        order = order[:: fitted_step(len(order))]
    settings = _poselib_options(options, is_sorted=True)
    is_thorough = kind == "fundamental" and not options.fast
    if is_thorough:
        settings["min_iterations"] = _FUNDAMENTAL_ITERATIONS
    matrix, report = estimate(p0[order], p1[order], settings, {})
    agreeing = confidence[order][np.asarray(report["inliers"], np.bool_)].sum()
    if is_thorough and agreeing < _CLEAR_SHARE * confidence.sum():
        settings["min_iterations"] = _UNCLEAR_ITERATIONS
        matrix, report = estimate(p0[order], p1[order], settings, {})
    matrix = np.asarray(matrix, np.float64)
    if kind == "homography":
        return _refitted(matrix, p0, p1, options, confidence)
    if len(order) < len(p0):
        return _checked(matrix, sampson_error(matrix, p0, p1) < options.threshold_px**2)
    return _checked(matrix, _unsorted(report["inliers"], order))


def _refitted(
    matrix: Float64, p0: Float64, p1: Float64, options: FitOptions, confidence: Float32
) -> Fit:
    """Fit a homography to all matches by weights."""
    if not np.isfinite(matrix).all() or not matrix.any():
        return nothing(len(p0))
    found = refit_homography(matrix, p0, p1, confidence, options.threshold_px)
    return Fit(found, np.linalg.norm(mapped(found, p0) - p1, axis=1) < options.threshold_px)


def fitted_step(count: int) -> int:
    """Return n so that a fast fit to `count` matches needs every n-th of them."""
    return max(1, math.ceil(count / _FAST_FITTED))


def sampson_error(matrix: Float64, p0: Float64, p1: Float64) -> Float64:
    """Return the squared Sampson distances of points (M, 2) to a fundamental matrix, (M,)."""
    one, other = (np.column_stack([p, np.ones(len(p))]) for p in (p0, p1))
    line1, line0 = one @ matrix.T, other @ matrix
    slope = (line1[:, :2] ** 2).sum(axis=1) + (line0[:, :2] ** 2).sum(axis=1)
    return np.asarray((other * line1).sum(axis=1) ** 2 / np.maximum(slope, 1e-300))


def fit_pose(
    p0: Float64,
    p1: Float64,
    cameras: tuple[dict[str, Any], dict[str, Any]],
    options: FitOptions,
    confidence: Float32 | None,
) -> Fit:
    """Fit a relative pose to points of two known cameras, given as PoseLib describes them."""
    order = np.arange(len(p0)) if confidence is None else np.argsort(-confidence, kind="stable")
    settings = _poselib_options(options, is_sorted=confidence is not None)
    found, report = poselib.estimate_relative_pose(p0[order], p1[order], *cameras, settings, {})
    length = float(np.linalg.norm(found.t))
    if not np.isfinite(found.R).all() or not length > 0:
        return nothing(len(p0))
    direction = np.asarray(found.t, np.float64) / length
    x, y, z = direction
    essential = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ found.R
    pose = np.column_stack([found.R, direction])
    return Fit(essential, _unsorted(report["inliers"], order), pose)


def _poselib_options(options: FitOptions, *, is_sorted: bool) -> dict[str, Any]:
    return {
        "max_epipolar_error": options.threshold_px,
        "max_reproj_error": options.threshold_px,
        "max_iterations": _FAST_ITERATIONS if options.fast else MAX_ITERATIONS,
        "min_iterations": _MIN_ITERATIONS if is_sorted else 1000,
        "success_prob": SUCCESS_PROBABILITY,
        "seed": options.seed,
        "progressive_sampling": is_sorted,
    }


def _unsorted(inliers: Any, order: np.ndarray) -> Bool:
    marked = np.zeros(len(order), np.bool_)
    marked[order[np.asarray(inliers, np.bool_)]] = True
    return marked


def _fit_by_opencv(kind: str, p0: Float64, p1: Float64, options: FitOptions) -> Fit:
    find = cv2.findHomography if kind == "homography" else cv2.findFundamentalMat
    try:
        fitted: Any = find(p0, p1, _usac(options))
    except cv2.error:  # a degenerate sample that its own checks accept
        return nothing(len(p0))
    matrix, mask = fitted
    if matrix is None:
        return nothing(len(p0))
    return _checked(np.asarray(matrix, np.float64), np.asarray(mask, np.bool_).ravel())


def _checked(matrix: Float64, inliers: Bool) -> Fit:
    if matrix.shape != (3, 3) or not np.isfinite(matrix).all() or not matrix.any():
        return nothing(len(inliers))
    return Fit(matrix, inliers)


def _usac(options: FitOptions) -> Any:
    params = cv2.UsacParams()
    params.score = cv2.SCORE_METHOD_MAGSAC
    params.sampler = cv2.SAMPLING_UNIFORM
    params.loMethod = cv2.LOCAL_OPTIM_SIGMA
    params.confidence = SUCCESS_PROBABILITY
    params.maxIterations = MAX_ITERATIONS
    params.threshold = options.threshold_px
    params.randomGeneratorState = options.seed
    params.isParallel = False
    return params
