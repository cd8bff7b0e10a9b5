"""Robust estimation of a homography, fundamental matrix or relative pose from matches.

The confidence follows the a contrario method (Moisan and Stival 2004). With n matches, k inliers
within t pixels, and s matches that determine the geometry, the expected number of equally good
geometries among unrelated points (the number of false alarms) is

    NFA = (n - s) C(n, k) C(k, s) p^(k - s)

where p is the probability that a random point is an inlier: the area of a disc of radius t over
the image area for a homography, the area of a band of half-width t along the diagonal for an
epipolar geometry. The confidence is max(0, 1 - NFA). n and k count distinct positions: keypoints
that differ only in orientation count once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import poselib
from numpy.typing import NDArray

from matchserve import defaults
from matchserve.errors import InvalidParameter
from matchserve.types import Bool, Float64, Verification, VerifyKind

VERIFY_KINDS = ("none", "homography", "fundamental", "pose")
MAX_ITERATIONS = 10_000
SUCCESS_PROBABILITY = 0.9999

# Number of matches that determine the geometry.
_SAMPLE = {"homography": 4, "fundamental": 7, "pose": 5}


@dataclass(frozen=True, slots=True)
class Camera:
    """A pinhole camera: focal lengths and principal point in pixels, pixel centres at integers."""

    fx: float
    fy: float
    cx: float
    cy: float

    def __post_init__(self) -> None:
        values = (self.fx, self.fy, self.cx, self.cy)
        if not all(math.isfinite(v) for v in values) or self.fx <= 0 or self.fy <= 0:
            raise InvalidParameter(
                f"a camera needs positive focal lengths and a finite centre, not {values}"
            )

    @property
    def matrix(self) -> Float64:
        """The 3x3 calibration matrix."""
        return np.array([[self.fx, 0, self.cx], [0, self.fy, self.cy], [0, 0, 1]], np.float64)


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The geometry to estimate, and the maximum distance of an inlier."""

    kind: VerifyKind = defaults.VERIFY
    threshold_px: float = defaults.THRESHOLD_PX
    seed: int = 0
    cameras: tuple[Camera, Camera] | None = None

    def __post_init__(self) -> None:
        if self.kind not in VERIFY_KINDS:
            raise InvalidParameter(f"verify is {self.kind!r}, not one of {', '.join(VERIFY_KINDS)}")
        if not 0 <= self.seed < 2**31:
            raise InvalidParameter(f"seed is {self.seed}, not in 0..2^31-1")
        if not 0.01 <= self.threshold_px <= 1000.0:
            raise InvalidParameter(f"threshold_px is {self.threshold_px}, not in 0.01..1000")
        if self.kind == "pose" and self.cameras is None:
            raise InvalidParameter("verify 'pose' needs the intrinsics of both cameras")


def verify(
    points0: NDArray[Any],
    points1: NDArray[Any],
    sizes: tuple[tuple[int, int], tuple[int, int]],
    options: VerifyOptions | None = None,
) -> Verification:
    """Estimate a geometry from matched points, (M, 2) each; equal input gives equal results.

    Too few, coincident or collinear points give no matrix and no inliers, not an error.
    """
    options = options or VerifyOptions()
    count = len(points0)
    if options.kind == "none":
        return Verification("none", None, np.zeros(count, np.bool_), 0.0)
    p0, p1 = np.asarray(points0, np.float64), np.asarray(points1, np.float64)
    usable = np.isfinite(p0).all(axis=1) & np.isfinite(p1).all(axis=1)
    matrix, pose, found = _fit(p0[usable], p1[usable], options)
    inliers = np.zeros(count, np.bool_)
    inliers[np.flatnonzero(usable)[found]] = True
    places, agreeing = _distinct_positions(p0, p1), _distinct_positions(p0[inliers], p1[inliers])
    if matrix is None or agreeing <= _SAMPLE[options.kind]:
        return Verification(options.kind, None, np.zeros(count, np.bool_), 0.0)
    log_nfa = log_false_alarms(places, agreeing, _SAMPLE[options.kind], _chance(options, sizes[1]))
    confidence = 1.0 - math.exp(log_nfa)
    return Verification(options.kind, matrix, inliers, confidence, pose, log_nfa)


def log_false_alarms(matches: int, inliers: int, sample: int, chance: float) -> float:
    """Return log NFA, at most 0; it never increases with the number of inliers."""
    if inliers <= sample or matches <= sample:
        return 0.0
    log_nfa = (
        math.log(matches - sample)
        + _log_binomial(matches, inliers)
        + _log_binomial(inliers, sample)
        + (inliers - sample) * math.log(chance)
    )
    return min(log_nfa, 0.0)


def _distinct_positions(p0: Float64, p1: Float64) -> int:
    """Return the number of distinct matched positions, in the image where it is smaller."""
    return min(len(np.unique(p0, axis=0)), len(np.unique(p1, axis=0)))


_Fit = tuple[Float64 | None, Float64 | None, Bool]


def _fit(p0: Float64, p1: Float64, options: VerifyOptions) -> _Fit:
    nothing = (None, None, np.zeros(len(p0), np.bool_))
    if _distinct_positions(p0, p1) <= _SAMPLE[options.kind]:
        return nothing
    if options.kind == "pose":
        return _relative_pose(p0, p1, options)
    find = cv2.findHomography if options.kind == "homography" else cv2.findFundamentalMat
    try:
        fitted: Any = find(p0, p1, _usac(options))
    except cv2.error:  # a degenerate sample that OpenCV did not reject
        return nothing
    matrix, mask = fitted
    if matrix is None or matrix.shape != (3, 3) or not np.isfinite(matrix).all():
        return nothing
    return np.asarray(matrix, np.float64), None, np.asarray(mask, np.bool_).ravel()


def _usac(options: VerifyOptions) -> Any:
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


def _relative_pose(p0: Float64, p1: Float64, options: VerifyOptions) -> _Fit:
    camera0, camera1 = options.cameras or (Camera(1, 1, 0, 0), Camera(1, 1, 0, 0))
    found, report = poselib.estimate_relative_pose(
        p0,
        p1,
        _poselib_camera(camera0),
        _poselib_camera(camera1),
        {
            "max_epipolar_error": options.threshold_px,
            "max_iterations": MAX_ITERATIONS,
            "success_prob": SUCCESS_PROBABILITY,
            "seed": options.seed,
        },
        {},
    )
    length = float(np.linalg.norm(found.t))
    inliers = np.asarray(report["inliers"], np.bool_)
    if not np.isfinite(found.R).all() or not length > 0:
        return None, None, np.zeros(len(p0), np.bool_)
    direction = np.asarray(found.t, np.float64) / length
    x, y, z = direction
    essential = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ found.R
    return essential, np.column_stack([found.R, direction]), inliers


def _poselib_camera(camera: Camera) -> dict[str, Any]:
    params = [camera.fx, camera.fy, camera.cx, camera.cy]
    # PoseLib does not use the width and height.
    return {"model": "PINHOLE", "width": 1, "height": 1, "params": params}


def _chance(options: VerifyOptions, size: tuple[int, int]) -> float:
    """Return the probability that an unrelated point of image 1 is an inlier."""
    area = float(size[0] * size[1])
    if options.kind == "homography":
        near = math.pi * options.threshold_px**2
    else:
        near = 2 * options.threshold_px * math.hypot(*size)
    return min(near / area, 0.999)


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
