"""Measure how strongly the matches suggest that two images show the same scene.

Coverage is measured on an 8 x 8 grid over each image: the share of cells with an inlier among the
cells with a keypoint, in the image where this share is smaller. Cells of sky or of a blank wall
have no keypoints and do not count. A logo in one corner of both images covers little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matchserve.types import Features, Float32, Matches, Verification

GRID = 8


@dataclass(frozen=True, slots=True)
class Evidence:
    """The numbers from which the probability of one scene is computed.

    `coverage` is from 0 to 1. `log_nfa` is that of the geometry, at most 0: it accounts for the
    image size and the inlier threshold, so the counts need not.
    """

    matches: int
    inliers: int
    coverage: float
    log_nfa: float

    @property
    def inlier_ratio(self) -> float:
        """The share of matches that agree with the geometry; 0 if there are no matches."""
        return self.inliers / max(self.matches, 1)


def gather(
    features0: Features,
    features1: Features,
    matches: Matches,
    verification: Verification,
    putative: int | None = None,
) -> Evidence:
    """Collect the evidence from verified matches of two described images.

    `putative` is the number of mutual nearest neighbours that `matches` were chosen from: chance
    had that many trials, and calibrations are fitted on it.
    """
    agreeing = matches.pairs[verification.inliers]
    covered = (
        _coverage(features.keypoints.xy, agreeing[:, side], features.size)
        for side, features in enumerate((features0, features1))
    )
    count = len(matches) if putative is None else putative
    return Evidence(count, len(agreeing), min(covered), verification.log_nfa)


def _coverage(xy: Float32, rows: NDArray[np.int32], size: tuple[int, int]) -> float:
    """Return the share of cells with a keypoint of `rows`, among all cells with a keypoint."""
    if len(rows) == 0:
        return 0.0
    scaled = np.floor((xy + 0.5) * (GRID / np.array(size, np.float64)))
    column, row = np.clip(scaled, 0, GRID - 1).astype(np.intp).T
    cells = GRID * row + column
    occupied, covered = (np.bincount(c, minlength=GRID**2) > 0 for c in (cells, cells[rows]))
    return float(covered.sum() / occupied.sum())
