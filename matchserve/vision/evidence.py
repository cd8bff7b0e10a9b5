"""How much a match says: counts, and how far over both images its inliers reach.

Coverage is counted in an 8 x 8 grid laid over each image: of the cells that have a keypoint, the
share that has an inlier, in the image where it is less. Cells of sky or of a blank wall have no
keypoints and so do not count; a logo in one corner of both images covers little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matchserve.types import Features, Float32, Matches, Verification

GRID = 8


@dataclass(frozen=True, slots=True)
class Evidence:
    """What two images' matches amount to.

    `coverage` is a share from 0 to 1; `log_nfa` is that of the geometry, 0 or less: it knows the
    size of the image and the distance of an inlier, so that the counts need not.
    """

    matches: int
    inliers: int
    coverage: float
    log_nfa: float

    @property
    def inlier_ratio(self) -> float:
        """The share of the matches that agree with the geometry, 0 without any match."""
        return self.inliers / max(self.matches, 1)


def gather(
    features0: Features, features1: Features, matches: Matches, verification: Verification
) -> Evidence:
    """What the matches of two described images say, once geometry was asked."""
    agreeing = matches.pairs[verification.inliers]
    covered = (
        _coverage(features.keypoints.xy, agreeing[:, side], features.size)
        for side, features in enumerate((features0, features1))
    )
    return Evidence(len(matches), len(agreeing), min(covered), verification.log_nfa)


def _coverage(xy: Float32, rows: NDArray[np.int32], size: tuple[int, int]) -> float:
    """Of the cells that have a keypoint, the share that has one of the keypoints `rows`."""
    if len(rows) == 0:
        return 0.0
    scaled = np.floor((xy + 0.5) * (GRID / np.array(size, np.float64)))
    column, row = np.clip(scaled, 0, GRID - 1).astype(np.intp).T
    cells = GRID * row + column
    return len(np.unique(cells[rows])) / len(np.unique(cells))
