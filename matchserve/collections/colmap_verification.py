"""Verify the matches of a pair by COLMAP's two-view geometry instead of our own estimation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.clock import Call
from matchserve.collections.colmap import (
    guessed_camera,
    pixels_of,
    unshifted_fundamental,
    unshifted_homography,
)
from matchserve.libraries import import_pycolmap
from matchserve.matcher import Matcher
from matchserve.options import Options
from matchserve.pipeline.attempts import judge_pair
from matchserve.types import Bool, Features, Float64, Matches, MatchResult, Verification, VerifyKind

_EPIPOLAR = ("CALIBRATED", "UNCALIBRATED")
_PLANE = ("PLANAR", "PANORAMIC", "PLANAR_OR_PANORAMIC")


@dataclass(frozen=True, slots=True, eq=False)
class ColmapGeometry:
    """A two-view geometry as COLMAP estimated it, in its pixels.

    `config` is the name of COLMAP's configuration, e.g. CALIBRATED, PLANAR or DEGENERATE; E, F and
    H are the essential, fundamental and homography matrix, None where COLMAP gave none.
    """

    config: str
    E: Float64 | None
    F: Float64 | None
    H: Float64 | None

    @property
    def is_verified(self) -> bool:
        """Whether COLMAP's mapper uses pairs of this configuration."""
        return self.config in _EPIPOLAR or self.config in _PLANE


def match_with_colmap(
    matcher: Matcher,
    features: tuple[Features, Features],
    focal_lengths: tuple[float | None, float | None],
    options: Options,
    call: Call,
) -> tuple[MatchResult, ColmapGeometry]:
    """Match two described images, and let COLMAP estimate the geometry of the matches.

    Focal lengths are in pixels, None where they are not known; with known ones, COLMAP estimates an
    essential matrix too. `same_scene` is calibrated for our own geometry, so it is None.

    Raises:
        ProviderUnavailable: pycolmap is not installed.
    """
    judged = judge_pair(features, None, matcher.descriptor.card, options, call)
    matches = judged.matches[judged.returned]
    with call.clock.stage("verify"):
        geometry, inliers = _estimate(features, matches, focal_lengths, options)
    kind, matrix = _in_our_pixels(geometry)
    verification = Verification(kind, matrix, inliers, 0.0, reason=f"COLMAP: {geometry.config}")
    result = MatchResult(*features, matches, verification, call.clock.timings_ms())
    return result, geometry


def geometry_columns(geometry: ColmapGeometry) -> dict[str, NDArray[Any]]:
    """Return what is stored of a geometry, beside the columns of its pair."""
    matrices = [geometry.E, geometry.F, geometry.H]
    absent = np.full((3, 3), np.nan)
    return {
        "colmap_config": np.array([geometry.config], "U24"),
        "colmap_matrices": np.array([[absent if m is None else m for m in matrices]]),
    }


def read_geometry(arrays: dict[str, NDArray[Any]], number: int) -> ColmapGeometry | None:
    """Return the geometry of a stored pair, None if COLMAP did not verify it."""
    if "colmap_config" not in arrays:
        return None
    matrices = [None if np.isnan(m).any() else m for m in arrays["colmap_matrices"][number]]
    return ColmapGeometry(str(arrays["colmap_config"][number]), *matrices)


def two_view_geometry(geometry: ColmapGeometry, inliers: NDArray[Any]) -> Any:
    """Return a geometry as pycolmap's object, with the pairs of keypoints (M, 2) that agree."""
    pycolmap = import_pycolmap()
    found = pycolmap.TwoViewGeometry()
    found.config = getattr(pycolmap.TwoViewGeometryConfiguration, geometry.config)
    found.inlier_matches = inliers.astype(np.uint32)
    for name in ("E", "F", "H"):
        matrix = getattr(geometry, name)
        if matrix is not None:
            setattr(found, name, matrix)
    return found


def _estimate(
    features: tuple[Features, Features],
    matches: Matches,
    focal_lengths: tuple[float | None, float | None],
    options: Options,
) -> tuple[ColmapGeometry, Bool]:
    """Estimate the geometry, and mark the matches that agree with it."""
    pycolmap = import_pycolmap()
    cameras = [
        guessed_camera(one.size, focal) for one, focal in zip(features, focal_lengths, strict=True)
    ]
    points = [pixels_of(one.keypoints) for one in features]
    # Each match is a row of its own, so that the inliers are known by row.
    rows = np.arange(len(matches), dtype=np.uint32)
    found = pycolmap.estimate_two_view_geometry(
        cameras[0], points[0][matches.pairs[:, 0]], cameras[1], points[1][matches.pairs[:, 1]],
        np.column_stack([rows, rows]), _ransac_options(options),
    )  # fmt: skip
    inliers = np.zeros(len(matches), np.bool_)
    inliers[np.asarray(found.inlier_matches)[:, 0]] = True
    matrices = [_finite(getattr(found, name)) for name in ("E", "F", "H")]
    config = pycolmap.TwoViewGeometryConfiguration(int(found.config))
    return ColmapGeometry(config.name, *matrices), inliers


def _ransac_options(options: Options) -> Any:
    """Return COLMAP's defaults with the threshold and the random seed of our options."""
    estimation = import_pycolmap().TwoViewGeometryOptions()
    estimation.ransac.max_error = options.verify.threshold_px
    estimation.ransac.random_seed = options.verify.seed
    return estimation


def _finite(matrix: Any) -> Float64 | None:
    if matrix is None or not np.isfinite(matrix).all() or not np.any(matrix):
        return None
    return np.asarray(matrix, np.float64)


def _in_our_pixels(geometry: ColmapGeometry) -> tuple[VerifyKind, Float64 | None]:
    """Return the kind and the matrix of our own results that say the same as a geometry."""
    if geometry.config in _PLANE and geometry.H is not None:
        return "homography", unshifted_homography(geometry.H)
    if geometry.config in _EPIPOLAR and geometry.F is not None:
        return "fundamental", unshifted_fundamental(geometry.F)
    return "fundamental", None
