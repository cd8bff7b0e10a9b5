"""Choose the simplest geometry that explains the matches.

A more general geometry always agrees with more matches: a homography has four unknowns more than a
similarity, and a fundamental matrix constrains one coordinate of a point instead of two. So it is
chosen only for matches that are far off the simpler geometry: if those of them that agree with the
more general one are more than chance explains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from matchserve import defaults
from matchserve.types import Bool, Verification
from matchserve.vision.estimators import fitted_step
from matchserve.vision.judged_fits import (
    SAMPLE_SIZE,
    Points,
    Sizes,
    VerifyOptions,
    chance_of_inlier,
    fitted,
    log_false_alarms,
)
from matchserve.vision.refit import mapped

# If one homography explains this share of the inliers of a fundamental matrix, the scene is a
# plane or the camera only turned, and the fundamental matrix is not determined (as in COLMAP).
PLANAR_SHARE = 0.8

# The values below were chosen on training data (docs/research/models.md#choice-of-the-geometry).
# Matches this many thresholds away from a similarity, or from a map of the plane, are off it.
OFF_SIMILARITY, OFF_PLANE = 2.0, 3.0
# Matches off a geometry count if their agreement would be chance with at most this probability.
LOG_CHANCE = math.log(1e-3)
# A plane with leaning buildings on it is still best described by a map of the plane. The scene has
# depth if this share of the inliers of a fundamental matrix is off the plane, or if chance explains
# those that are off it worse than this.
OFF_SHARE, LOG_CHANCE_OF_FEW = 0.4, -100.0
# A quick homography is good enough to see depth with twice that evidence, which saves two fits.
LOG_CHANCE_AT_ONCE = 2 * LOG_CHANCE_OF_FEW


def choose_geometry(points: Points, options: VerifyOptions, sizes: Sizes) -> Verification:
    """Fit maps of the plane and a fundamental matrix, choose one, and say why."""
    sure = points.at_least(defaults.SUPPORT_CONFIDENCE)
    general = fitted(sure, "fundamental", options, sizes)
    quick, _ = _quick_plane(sure, general, options, sizes)
    off = _Off.of(sure, quick, general, OFF_PLANE, options, sizes)
    if off.log_nfa < LOG_CHANCE_AT_ONCE:
        return replace(general, reason=_off_the_plane(general, off))
    plane, why = _choose_plane(points, sure, options, sizes)
    if plane.matrix is None and general.matrix is None:
        return replace(plane, reason="too few matches agree on any geometry")
    off = _Off.of(sure, plane, general, OFF_PLANE, options, sizes)
    share = off.agreeing / max(int(general.inliers.sum()), 1)
    has_depth = off.log_nfa < (LOG_CHANCE if share >= OFF_SHARE else LOG_CHANCE_OF_FEW)
    if plane.matrix is None or has_depth:
        return replace(general, reason=_off_the_plane(general, off))
    return replace(plane, reason=_reason(plane, why))


def check_plane(points: Points, options: VerifyOptions, sizes: Sizes) -> Verification:
    """Fit a fundamental matrix, and say if it is not determined because the scene is flat."""
    general = fitted(points, "fundamental", options, sizes)
    count = int(general.inliers.sum())
    _, planar = _quick_plane(points, general, options, sizes)
    if count == 0 and planar == 0:
        return replace(general, reason="too few matches agree on any geometry")
    if planar < PLANAR_SHARE * count:
        return replace(general, reason=_reason(general, f"{planar} of them on one plane"))
    text = f"{planar} candidates agree on one plane or a camera that only turned"
    return replace(general, reason=f"the fundamental matrix is not determined: {text}")


def _reason(fit: Verification, why: str) -> str:
    return f"{fit.kind}: {int(fit.inliers.sum())} candidates agree, {why}"


def _off_the_plane(general: Verification, off: _Off) -> str:
    return _reason(general, f"{off.agreeing} of them off the plane that most agree on")


def _quick_plane(
    points: Points, general: Verification, options: VerifyOptions, sizes: Sizes
) -> tuple[Verification, int]:
    """Fit a homography to the inliers of a fundamental matrix, or else to all matches.

    Returned with the number of those that agree. Uniform sampling by OpenCV is enough for a count,
    at a tenth of the time of PoseLib's fit.
    """
    kept = replace(points, confidence=None)
    kept = kept[general.inliers[points.rows]] if general.inliers.any() else kept
    step = fitted_step(len(kept.p0)) if options.fast else 1
    plane = fitted(kept[::step], "homography", options, sizes)
    return plane, min(step * int(plane.inliers.sum()), len(kept.p0))


def _choose_plane(
    points: Points, sure: Points, options: VerifyOptions, sizes: Sizes
) -> tuple[Verification, str]:
    """Return a similarity, or a homography if that explains matches off the similarity."""
    simple = fitted(points, "similarity", options, sizes)
    plane = fitted(sure, "homography", options, sizes)
    off = _Off.of(sure, simple, plane, OFF_SIMILARITY, options, sizes)
    if plane.matrix is not None and (simple.matrix is None or off.log_nfa < LOG_CHANCE):
        return plane, f"{off.agreeing} of them far off any similarity"
    return simple, "and a homography adds no more than chance explains"


@dataclass(frozen=True, slots=True)
class _Off:
    """How many matches off a simple geometry agree with a general one, and log NFA of so many."""

    agreeing: int
    log_nfa: float

    @classmethod
    def of(
        cls,
        points: Points,
        simple: Verification,
        general: Verification,
        distance: float,
        options: VerifyOptions,
        sizes: Sizes,
    ) -> _Off:
        is_off = _is_far(points, simple, distance * options.threshold_px)
        rows = (is_off, is_off & general.inliers[points.rows])
        off, agreeing = map(points.positions, rows)
        chance = chance_of_inlier(general.kind, options.threshold_px, sizes[1])
        return cls(agreeing, log_false_alarms(off, agreeing, SAMPLE_SIZE[general.kind], chance))


def _is_far(points: Points, plane: Verification, distance_px: float) -> Bool:
    """Mark the matches that a map of the plane does not map to within a distance."""
    if plane.matrix is None:
        return np.ones(len(points.p0), np.bool_)
    gap = np.linalg.norm(mapped(plane.matrix, points.p0) - points.p1, axis=1)
    return np.asarray(~(gap <= distance_px))
