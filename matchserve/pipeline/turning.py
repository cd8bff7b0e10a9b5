"""Find how far one image is turned against the other, by trying.

Images of different sensors seldom give a keypoint the same orientation. Upright patches need none,
but those of a turned image must be turned as the image is. A few keypoints of the second image are
described at twelve angles; the matched points refine the angle that finds most matches.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matchserve.pipeline.judging import JudgedMatches
from matchserve.types import Features, Float32, Keypoints

STEP_DEG = 30
"""Difference of the angles that are tried: descriptors bear half of it."""

SEARCH_KEYPOINTS = 512
"""Number of keypoints of the second image that are described at each angle."""

# The rotation is voted for by pairs of this many matches at most; a vote is counted within this
# many degrees.
_VOTERS = 64
_VOTE_DEG = 5.0


def turned(keypoints: Keypoints, angle: float) -> Keypoints:
    """Return the keypoints with one angle, in radians, for all."""
    angles = np.full(len(keypoints), angle, np.float32)
    return Keypoints(keypoints.xy, keypoints.sigma, angles, keypoints.score)


def find_turn(
    features0: Features,
    keypoints1: Keypoints,
    describe: Callable[[Keypoints], Features],
    judge: Callable[[tuple[Features, Features]], JudgedMatches],
) -> float:
    """Return the angle, in radians, at which upright keypoints of image 1 match best.

    `features0` are upright keypoints of image 0, `keypoints1` those of image 1, best first.
    """
    few = keypoints1[np.arange(min(SEARCH_KEYPOINTS, len(keypoints1)))]
    angles = [float(np.radians(degrees)) for degrees in range(0, 360, STEP_DEG)]
    tried = [judge((features0, describe(turned(few, angle)))) for angle in angles]
    best = int(np.argmax([judged.expected_right for judged in tried]))
    angle, judged = angles[best], tried[best]
    pairs = judged.matches.pairs
    confidence = judged.matches.confidence
    if confidence is None or len(pairs) < 3:
        return angle
    voters = np.argsort(-confidence, kind="stable")[:_VOTERS]
    return voted_rotation(
        features0.keypoints.xy[pairs[voters, 0]],
        few.xy[pairs[voters, 1]],
        confidence[voters],
        angle,
    )


def voted_rotation(
    points0: Float32, points1: Float32, confidence: Float32, first_guess: float
) -> float:
    """Return the rotation of points 0 to points 1 that most pairs of matches agree on.

    Votes further than a step from `first_guess` are not counted.
    """
    one, other = np.triu_indices(len(points0), 1)
    before, after = points0[other] - points0[one], points1[other] - points1[one]
    votes = np.arctan2(after[:, 1], after[:, 0]) - np.arctan2(before[:, 1], before[:, 0])
    weight = confidence[one] * confidence[other]
    # Votes relative to the guess, -180 to 180 degrees.
    relative = (np.degrees(votes - first_guess) + 180.0) % 360.0 - 180.0
    candidates = np.arange(-STEP_DEG, STEP_DEG + 1, 1.0)
    near = np.abs(relative[None, :] - candidates[:, None]) <= _VOTE_DEG
    support = near @ weight
    chosen = near[int(support.argmax())]
    if weight[chosen].sum() <= 0:
        return first_guess
    shift = float(np.average(relative[chosen], weights=weight[chosen]))
    return first_guess + float(np.radians(shift))
