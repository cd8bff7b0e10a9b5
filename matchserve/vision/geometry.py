"""Robust estimation of a map of the plane, a fundamental matrix or a relative pose from matches."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve import defaults
from matchserve.types import POINT_MAPS, Float32, Verification
from matchserve.vision.affine_fits import SAMPLE_SIZE as AFFINE_SAMPLES
from matchserve.vision.cameras import Camera
from matchserve.vision.geometry_choice import check_plane, choose_geometry
from matchserve.vision.judged_fits import (
    SAMPLE_SIZE,
    VERIFY_KINDS,
    Points,
    Sizes,
    VerifyChoice,
    VerifyOptions,
    chance_of_inlier,
    fitted,
    known_cameras,
    log_false_alarms,
)

__all__ = [
    "VERIFY_KINDS",
    "Camera",
    "VerifyChoice",
    "VerifyOptions",
    "known_cameras",
    "log_false_alarms",
    "verify",
]


def verify(
    points0: NDArray[Any],
    points1: NDArray[Any],
    sizes: Sizes,
    options: VerifyOptions | None = None,
    confidence: Float32 | None = None,
    candidates: int = 0,
) -> Verification:
    """Fit a geometry to matched points, (M, 2) each, robustly and repeatably.

    With the confidence (M,) of the matches, samples are drawn among the most confident first.
    `candidates` is the number of matches from which these were chosen by their confidence. Too
    few, coincident or collinear points give no matrix and no inliers; they are no error.
    """
    options = options or VerifyOptions()
    kind = options.kind or defaults.VERIFY
    if kind == "none":
        return Verification("none", None, np.zeros(len(points0), np.bool_), 0.0)
    if kind == "pose":
        cameras = known_cameras(options)
        points0, points1 = (
            camera.undistorted(xy) for camera, xy in zip(cameras, (points0, points1), strict=True)
        )
        pose = fitted(Points.of(points0, points1, confidence), "pose", options, sizes)
        return replace(pose, cameras=(str(cameras[0]), str(cameras[1])))
    points = Points.of(points0, points1, confidence)
    if kind in POINT_MAPS or (kind == "fundamental" and not options.explain):
        fit = fitted(points, kind, options, sizes)
        return _among(candidates, fit, points, options, sizes)
    choose = choose_geometry if kind == "auto" else check_plane
    return _among(candidates, choose(points, options, sizes), points, options, sizes)


def _among(
    candidates: int, fit: Verification, points: Points, options: VerifyOptions, sizes: Sizes
) -> Verification:
    """Judge a map of the plane by chance among all candidates.

    A confident match has neighbours that agree with it on a similarity, also in unrelated images:
    of matches that were chosen so, a few always agree on one, and on a homography near it.
    """
    if fit.matrix is None or fit.kind not in POINT_MAPS or candidates <= len(points.p0):
        return fit
    agreeing = points.positions(fit.inliers[points.rows])
    chance = chance_of_inlier(fit.kind, options.threshold_px, sizes[1])
    log_nfa = log_false_alarms(candidates, agreeing, SAMPLE_SIZE[fit.kind], chance)
    judged = replace(fit, confidence=1.0 - math.exp(log_nfa))
    # Calibrations of `same_scene`, which homographies have, are fitted without this.
    return judged if fit.kind not in AFFINE_SAMPLES else replace(judged, log_nfa=log_nfa)
