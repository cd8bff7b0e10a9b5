"""Fit one kind of geometry to matched points, and judge by chance how good it is.

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
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from matchserve import defaults
from matchserve.errors import InvalidParameter
from matchserve.types import POINT_MAPS, Bool, Float32, Float64, Verification, VerifyKind
from matchserve.vision.affine_fits import SAMPLE_SIZE as AFFINE_SAMPLES
from matchserve.vision.affine_fits import fit_affine
from matchserve.vision.arrays import positions
from matchserve.vision.cameras import Camera, CameraChoice
from matchserve.vision.estimators import Fit, FitOptions, fit_matrix, fit_pose, nothing

VerifyChoice = Literal["none", "homography", "affine", "similarity", "fundamental", "pose", "auto"]
VERIFY_KINDS: tuple[VerifyChoice, ...] = get_args(VerifyChoice)

SAMPLE_SIZE = {**AFFINE_SAMPLES, "homography": 4, "fundamental": 7, "pose": 5}
"""Number of matches that determine the geometry."""

Sizes = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The geometry to estimate, and the maximum distance of an inlier.

    A `kind` of None is that of the model's card, or else the default. `cameras` are those of both
    images, for `pose` only; `Matcher.match` takes "exif" for a camera
    whose focal length is in the EXIF data. With `fast`, a fundamental matrix is fitted to a part
    of many matches if their confidence is known, and hopeless matches are given up early.
    Without `explain`, nobody wants to know whether the scene is too flat for a fundamental matrix.
    """

    kind: VerifyChoice | None = defaults.VERIFY
    threshold_px: float = defaults.THRESHOLD_PX
    seed: int = 0
    cameras: tuple[CameraChoice, CameraChoice] | None = None
    fast: bool = False
    explain: bool = True

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in VERIFY_KINDS:
            raise InvalidParameter(f"verify is {self.kind!r}, not one of {', '.join(VERIFY_KINDS)}")
        if not 0 <= self.seed < 2**31:
            raise InvalidParameter(f"seed is {self.seed}, not in 0..2^31-1")
        if not 0.01 <= self.threshold_px <= 1000.0:
            raise InvalidParameter(f"threshold_px is {self.threshold_px}, not in 0.01..1000")
        if self.kind == "pose" and self.cameras is None:
            raise InvalidParameter("verify 'pose' needs the cameras of both images")


def known_cameras(options: VerifyOptions) -> tuple[Camera, Camera]:
    """Return the cameras of both images.

    Raises:
        InvalidParameter: a camera is still to be read from EXIF data.
    """
    first, second = options.cameras or ("exif", "exif")
    if first == "exif" or second == "exif":
        raise InvalidParameter("camera 'exif' needs images with EXIF data")
    return first, second


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """The finite ones of matched points, and their rows among all `count` matches.

    `is_distinct` says that no two of them share a position in an image.
    """

    p0: Float64
    p1: Float64
    rows: NDArray[np.intp]
    count: int
    confidence: Float32 | None
    is_distinct: bool

    @classmethod
    def of(cls, points0: NDArray[Any], points1: NDArray[Any], confidence: Float32 | None) -> Points:
        """Keep the rows that are finite in both images."""
        p0, p1 = np.asarray(points0, np.float64), np.asarray(points1, np.float64)
        rows = np.flatnonzero(np.isfinite(p0).all(axis=1) & np.isfinite(p1).all(axis=1))
        kept = None if confidence is None else confidence[rows]
        p0, p1, count = p0[rows], p1[rows], len(p0)
        return cls(p0, p1, rows, count, kept, count_positions(p0, p1) == len(rows))

    def __getitem__(self, kept: Bool | slice) -> Points:
        confidence = None if self.confidence is None else self.confidence[kept]
        p0, p1, rows = self.p0[kept], self.p1[kept], self.rows[kept]
        return Points(p0, p1, rows, self.count, confidence, self.is_distinct)

    def positions(self, kept: Bool | None = None) -> int:
        """Return the number of distinct matched positions, as `count_positions` says."""
        if self.is_distinct:
            return len(self.rows) if kept is None else int(np.count_nonzero(kept))
        if kept is None:
            return count_positions(self.p0, self.p1)
        return count_positions(self.p0[kept], self.p1[kept])

    def at_least(self, confidence: float) -> Points:
        """Return the matches that are this confident; all if nothing is known about them."""
        return self if self.confidence is None else self[self.confidence >= confidence]


def fitted(points: Points, kind: VerifyKind, options: VerifyOptions, sizes: Sizes) -> Verification:
    """Fit one kind of geometry, and judge by chance how good it is."""
    sample = SAMPLE_SIZE[kind]
    found = _fit(points, kind, options)
    inliers = np.zeros(points.count, np.bool_)
    inliers[points.rows[found.inliers]] = True
    agreeing = points.positions(found.inliers)
    if found.matrix is None or agreeing <= sample:
        return Verification(kind, None, np.zeros(points.count, np.bool_), 0.0)
    chance = chance_of_inlier(kind, options.threshold_px, sizes[1])
    log_nfa = log_false_alarms(points.positions(), agreeing, sample, chance)
    confidence = 1.0 - math.exp(log_nfa)
    return Verification(kind, found.matrix, inliers, confidence, found.pose, log_nfa)


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


def count_positions(p0: Float64, p1: Float64) -> int:
    """Return the number of distinct matched positions, in the image where it is smaller."""
    return min(len(np.unique(positions(p0))), len(np.unique(positions(p1))))


def _fit(points: Points, kind: VerifyKind, options: VerifyOptions) -> Fit:
    if points.positions() <= SAMPLE_SIZE[kind]:
        return nothing(len(points.p0))
    rule = FitOptions(options.threshold_px, options.seed, options.fast)
    if kind in AFFINE_SAMPLES:
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


def chance_of_inlier(kind: VerifyKind, threshold_px: float, size: tuple[int, int]) -> float:
    """Return the probability that an unrelated point of image 1 is an inlier."""
    area = float(size[0] * size[1])
    if kind in POINT_MAPS:
        near = math.pi * threshold_px**2
    else:
        near = 2 * threshold_px * math.hypot(*size)
    return min(near / area, 0.999)


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
