"""Robust estimation of a map of the plane, a fundamental matrix or a relative pose from matches.

The confidence follows the a contrario method (Moisan and Stival 2004). With n matches, k inliers
within t pixels, and s matches that determine the geometry, the expected number of equally good
geometries among unrelated points (the number of false alarms) is

    NFA = (n - s) C(n, k) C(k, s) p^(k - s)

where p is the probability that a random point is an inlier: the area of a disc of radius t over
the image area for a homography, an affine map or a similarity, the area of a band of half-width t
along the diagonal for an epipolar geometry. The confidence is max(0, 1 - NFA). n and k count
distinct positions: keypoints that differ only in orientation count once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from matchserve import defaults
from matchserve.errors import InvalidParameter
from matchserve.types import POINT_MAPS, Float32, Float64, Verification, VerifyKind
from matchserve.vision.affine_fits import SAMPLE_SIZE, fit_affine
from matchserve.vision.arrays import positions
from matchserve.vision.cameras import Camera as Camera
from matchserve.vision.cameras import CameraChoice
from matchserve.vision.estimators import (
    Fit,
    FitOptions,
    fit_matrix,
    fit_pose,
    fitted_step,
    nothing,
)

VerifyChoice = Literal["none", "homography", "affine", "similarity", "fundamental", "pose", "auto"]
VERIFY_KINDS: tuple[VerifyChoice, ...] = get_args(VerifyChoice)

# If one homography explains this share of the inliers of a fundamental matrix, the scene is a
# plane or the camera only turned, and the fundamental matrix is not determined (as in COLMAP).
PLANAR_SHARE = 0.8

# Matches this many thresholds away from a plane are not on it; a fundamental matrix is determined
# if those of them that agree with it would be chance with at most this probability.
OFF_PLANE = 3.0
CHANCE_OF_DEPTH = 1e-3

# Number of matches that determine the geometry.
_SAMPLE = {**SAMPLE_SIZE, "homography": 4, "fundamental": 7, "pose": 5}


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The geometry to estimate, and the maximum distance of an inlier.

    `cameras` are those of both images, for `pose` only; `Matcher.match` takes "exif" for a camera
    whose focal length is in the EXIF data. With `fast`, a fundamental matrix is fitted to a part
    of many matches if their confidence is known, and hopeless matches are given up early.
    """

    kind: VerifyChoice = defaults.VERIFY
    threshold_px: float = defaults.THRESHOLD_PX
    seed: int = 0
    cameras: tuple[CameraChoice, CameraChoice] | None = None
    fast: bool = False

    def __post_init__(self) -> None:
        if self.kind not in VERIFY_KINDS:
            raise InvalidParameter(f"verify is {self.kind!r}, not one of {', '.join(VERIFY_KINDS)}")
        if not 0 <= self.seed < 2**31:
            raise InvalidParameter(f"seed is {self.seed}, not in 0..2^31-1")
        if not 0.01 <= self.threshold_px <= 1000.0:
            raise InvalidParameter(f"threshold_px is {self.threshold_px}, not in 0.01..1000")
        if self.kind == "pose" and self.cameras is None:
            raise InvalidParameter("verify 'pose' needs the cameras of both images")


def verify(
    points0: NDArray[Any],
    points1: NDArray[Any],
    sizes: tuple[tuple[int, int], tuple[int, int]],
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
    if options.kind == "none":
        return Verification("none", None, np.zeros(len(points0), np.bool_), 0.0)
    if options.kind == "pose":
        cameras = known_cameras(options)
        points0, points1 = (
            camera.undistorted(xy) for camera, xy in zip(cameras, (points0, points1), strict=True)
        )
        pose = _fitted(_Points.of(points0, points1, confidence), "pose", options, sizes)
        return replace(pose, cameras=(str(cameras[0]), str(cameras[1])))
    points = _Points.of(points0, points1, confidence)
    if options.kind != "auto" and options.kind in POINT_MAPS:
        fit = _fitted(points, options.kind, options, sizes)
        return _among(candidates, fit, points, options, sizes)
    found = _epipolar(points, options, sizes)
    return _among(candidates, found, points, options, sizes)


def known_cameras(options: VerifyOptions) -> tuple[Camera, Camera]:
    """Return the cameras of both images.

    Raises:
        InvalidParameter: a camera is still to be read from EXIF data.
    """
    first, second = options.cameras or ("exif", "exif")
    if first == "exif" or second == "exif":
        raise InvalidParameter("camera 'exif' needs images with EXIF data")
    return first, second


def _epipolar(
    points: _Points, options: VerifyOptions, sizes: tuple[tuple[int, int], tuple[int, int]]
) -> Verification:
    """Fit a fundamental matrix; say if it is not determined, or choose a map of the plane then."""
    general = _fitted(points, "fundamental", options, sizes)
    count = int(general.inliers.sum())
    planar = _count_on_a_plane(points, general, options, sizes)
    if count == 0 and planar == 0:
        return replace(general, reason="too few matches agree on any geometry")
    is_planar = planar >= PLANAR_SHARE * count
    if options.kind == "auto":
        plane = _plane(points, options, sizes)
        if is_planar or not _has_depth(points, plane, general, options, sizes):
            agreeing = int(plane.inliers.sum())
            text = f"{agreeing} candidates agree on one plane or a camera that only turned"
            return replace(plane, reason=f"{plane.kind}: {text}")
    if not is_planar:
        text = f"{count} candidates agree, {planar} of them on one plane"
        return replace(general, reason=f"fundamental: {text}")
    text = f"{planar} candidates agree on one plane or a camera that only turned"
    return replace(general, reason=f"the fundamental matrix is not determined: {text}")


def _plane(
    points: _Points, options: VerifyOptions, sizes: tuple[tuple[int, int], tuple[int, int]]
) -> Verification:
    """Fit a similarity and a homography, and return the one that chance explains less well."""
    kinds: tuple[VerifyKind, ...] = ("similarity", "homography")
    return min(
        (_fitted(points, kind, options, sizes) for kind in kinds), key=lambda fit: fit.log_nfa
    )


def _among(
    candidates: int,
    fit: Verification,
    points: _Points,
    options: VerifyOptions,
    sizes: tuple[tuple[int, int], tuple[int, int]],
) -> Verification:
    """Judge a map of the plane by chance among all candidates.

    A confident match has neighbours that agree with it on a similarity, also in unrelated images:
    of matches that were chosen so, a few always agree on one, and on a homography near it.
    """
    if fit.matrix is None or fit.kind not in POINT_MAPS or candidates <= len(points.p0):
        return fit
    kept = fit.inliers[points.rows]
    agreeing = _count_positions(points.p0[kept], points.p1[kept])
    chance = _chance(fit.kind, options.threshold_px, sizes[1])
    log_nfa = log_false_alarms(candidates, agreeing, _SAMPLE[fit.kind], chance)
    judged = replace(fit, confidence=1.0 - math.exp(log_nfa))
    # Calibrations of `same_scene`, which homographies have, are fitted without this.
    return judged if fit.kind not in SAMPLE_SIZE else replace(judged, log_nfa=log_nfa)


def _has_depth(
    points: _Points,
    plane: Verification,
    general: Verification,
    options: VerifyOptions,
    sizes: tuple[tuple[int, int], tuple[int, int]],
) -> bool:
    """Return whether matches off the plane agree with the fundamental matrix, and not by chance.

    A fundamental matrix fits a flat scene too, and its inliers are always more: they have one
    condition to meet instead of two.
    """
    if plane.matrix is None:
        return True
    mapped = np.column_stack([points.p0, np.ones(len(points.p0))]) @ plane.matrix.T
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = np.linalg.norm(mapped[:, :2] / mapped[:, 2:] - points.p1, axis=1)
    is_off = ~(gap <= OFF_PLANE * options.threshold_px)
    rows = (is_off, is_off & general.inliers[points.rows])
    off, agreeing = (_count_positions(points.p0[kept], points.p1[kept]) for kept in rows)
    chance = _chance("fundamental", options.threshold_px, sizes[1])
    log_nfa = log_false_alarms(off, agreeing, _SAMPLE["fundamental"], chance)
    return log_nfa < math.log(CHANCE_OF_DEPTH)


def _count_on_a_plane(
    points: _Points,
    general: Verification,
    options: VerifyOptions,
    sizes: tuple[tuple[int, int], tuple[int, int]],
) -> int:
    """Count the inliers of a fundamental matrix, or else the matches, that share a homography.

    Uniform sampling by OpenCV is enough for a count, at a tenth of the time of PoseLib's fit.
    """
    kept = general.inliers[points.rows] if general.inliers.any() else slice(None)
    p0, p1 = points.p0[kept], points.p1[kept]
    step = fitted_step(len(p0)) if options.fast else 1
    part = replace(points, p0=p0[::step], p1=p1[::step], confidence=None)
    part = replace(part, rows=np.arange(len(part.p0)), count=len(part.p0))
    return min(step * int(_fitted(part, "homography", options, sizes).inliers.sum()), len(p0))


def _fitted(
    points: _Points,
    kind: VerifyKind,
    options: VerifyOptions,
    sizes: tuple[tuple[int, int], tuple[int, int]],
) -> Verification:
    """Fit one kind of geometry, and judge by chance how good it is."""
    sample = _SAMPLE[kind]
    found = _fit(points, kind, options)
    inliers = np.zeros(points.count, np.bool_)
    inliers[points.rows[found.inliers]] = True
    agreeing = _count_positions(points.p0[found.inliers], points.p1[found.inliers])
    if found.matrix is None or agreeing <= sample:
        return Verification(kind, None, np.zeros(points.count, np.bool_), 0.0)
    positions = _count_positions(points.p0, points.p1)
    chance = _chance(kind, options.threshold_px, sizes[1])
    log_nfa = log_false_alarms(positions, agreeing, sample, chance)
    confidence = 1.0 - math.exp(log_nfa)
    return Verification(kind, found.matrix, inliers, confidence, found.pose, log_nfa)


@dataclass(frozen=True, slots=True, eq=False)
class _Points:
    """The finite ones of matched points, and their rows among all `count` matches."""

    p0: Float64
    p1: Float64
    rows: NDArray[np.intp]
    count: int
    confidence: Float32 | None

    @classmethod
    def of(
        cls, points0: NDArray[Any], points1: NDArray[Any], confidence: Float32 | None
    ) -> _Points:
        p0, p1 = np.asarray(points0, np.float64), np.asarray(points1, np.float64)
        rows = np.flatnonzero(np.isfinite(p0).all(axis=1) & np.isfinite(p1).all(axis=1))
        kept = None if confidence is None else confidence[rows]
        return cls(p0[rows], p1[rows], rows, len(p0), kept)


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


def _count_positions(p0: Float64, p1: Float64) -> int:
    """Return the number of distinct matched positions, in the image where it is smaller."""
    return min(len(np.unique(positions(p0))), len(np.unique(positions(p1))))


def _fit(points: _Points, kind: VerifyKind, options: VerifyOptions) -> Fit:
    if _count_positions(points.p0, points.p1) <= _SAMPLE[kind]:
        return nothing(len(points.p0))
    rule = FitOptions(options.threshold_px, options.seed, options.fast)
    if kind in SAMPLE_SIZE:
        return fit_affine(kind, points.p0, points.p1, rule, points.confidence)
    if kind != "pose":
        return fit_matrix(kind, points.p0, points.p1, rule, points.confidence)
    camera0, camera1 = known_cameras(options)
    cameras = (_poselib_camera(camera0), _poselib_camera(camera1))
    return fit_pose(points.p0, points.p1, cameras, rule, points.confidence)


def _poselib_camera(camera: Camera) -> dict[str, Any]:
    params = [camera.fx, camera.fy, camera.cx, camera.cy]
    # PoseLib does not use the width and height. The points are undistorted already.
    return {"model": "PINHOLE", "width": 1, "height": 1, "params": params}


def _chance(kind: VerifyKind, threshold_px: float, size: tuple[int, int]) -> float:
    """Return the probability that an unrelated point of image 1 is an inlier."""
    area = float(size[0] * size[1])
    if kind in POINT_MAPS:
        near = math.pi * threshold_px**2
    else:
        near = 2 * threshold_px * math.hypot(*size)
    return min(near / area, 0.999)


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
