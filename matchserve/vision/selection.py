"""Choose the keypoints that are most likely found again in another image of the scene.

Contrast alone prefers fine detail, which a little blur or a change of scale removes. Contrast times
scale is a better guess, and two keypoints at almost one place seldom both help. How the numbers
were chosen, and what they gain, is in docs/research/keypoints.md.
"""

from __future__ import annotations

import math
from typing import Literal

import cv2
import numpy as np

from matchserve.types import Bool, Float64

Selection = Literal["contrast", "repeatable"]
SELECTIONS: tuple[Selection, ...] = ("contrast", "repeatable")

# Candidates per chosen keypoint. More candidates give more repeatable keypoints but take longer to
# detect: 272 ms by contrast and 274 ms with 1.25 on photographs, 13 to 21 % longer with 2.
CANDIDATES = 1.25
# A keypoint gives way to a better one within this distance, in pixels.
SPREAD_PX = 2


def candidate_count(wanted: int) -> int:
    """Return how many of the strongest keypoints to choose `wanted` ones from."""
    return math.ceil(CANDIDATES * wanted)


def repeatability_scores(rows: Float64, exponent: float = 1.0) -> Float64:
    """Return contrast times a power of sigma of rows (x, y, sigma, angle, contrast)."""
    return np.asarray(rows[:, 4] * rows[:, 2] ** exponent)


def is_best_nearby(
    xy: Float64, score: Float64, shape: tuple[int, ...], spread_px: int = SPREAD_PX
) -> Bool:
    """Return whether no keypoint within `spread_px` has a higher score.

    Keypoints that share a position and differ in orientation have equal scores: all are best.
    """
    column, row = np.clip(np.rint(xy).T, 0, [[shape[1] - 1], [shape[0] - 1]]).astype(int)
    # Compared in the precision of the map, so that equal scores stay equal.
    value = score.astype(np.float32)
    painted = np.zeros(shape[:2], np.float32)
    np.maximum.at(painted, (row, column), value)
    side = 2 * spread_px + 1
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (side, side))
    return np.asarray(cv2.dilate(painted, disc)[row, column] <= value)
