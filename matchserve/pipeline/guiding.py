"""Add the matches that guided matching finds along the geometry to those of a pair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from matchserve.models.card import ModelCard
from matchserve.options import Options
from matchserve.pipeline.attempts import Attempt, join_matches, join_points
from matchserve.pipeline.judging import (
    JudgedMatches,
    judge,
    matched_keypoints,
    support_confidence,
)
from matchserve.types import Bool, Image, Matches, RefinedPoints, Verification
from matchserve.vision.agreement import similarities
from matchserve.vision.geometry import known_cameras
from matchserve.vision.guided import Band, find_guided
from matchserve.vision.matching import Putative, putative

# Without networks that judge matches: the maximum ratio, the better of both ways.
_MAX_RATIO = 0.9


def guided_attempt(
    attempt: Attempt,
    verification: Verification,
    images: tuple[Image, Image] | None,
    card: ModelCard,
    options: Options,
) -> Attempt:
    """Return the attempt with further matches along the geometry; they are marked `guided`.

    Each is judged by the networks that judge all matches, among all mutual nearest neighbours.
    """
    found = _found(attempt, verification, options)
    if found is None or not len(found.matches):
        return attempt
    if card.confidence is None or attempt.features[0].model != card.name:
        matches = found.matches[np.flatnonzero(found.ratio.min(axis=1) <= _MAX_RATIO)]
        return _extended(attempt, matches, _unrefined(attempt, matches), options)
    everything = _with_context(found, attempt, options)
    keypoints = matched_keypoints(attempt.features, everything.matches)
    if options.judge.refine == "none":
        images = None
    confidence, refinement = judge(everything, keypoints, images, card)
    rows = np.flatnonzero(confidence[: len(found.matches)] >= _least(options))
    matches = replace(found.matches, confidence=confidence[: len(found.matches)])
    refined = None
    if refinement is not None:
        refined = RefinedPoints(refinement.xy1, refinement.affine, refinement.is_refined)[rows]
    return _extended(attempt, matches[rows], refined, options)


def agreeing(attempt: Attempt, verification: Verification) -> tuple[Attempt, Verification]:
    """Drop guided matches that, once refined, do not agree with the geometry."""
    if attempt.guided is None:
        return attempt, verification
    rows = np.flatnonzero(~attempt.guided | verification.inliers)
    judged = attempt.judged
    kept = replace(
        judged,
        matches=judged.matches[rows],
        refined=None if judged.refined is None else judged.refined[rows],
        returned=judged.returned[rows],
    )
    inliers = verification.inliers[rows]
    attempt = replace(attempt, judged=kept, guided=attempt.guided[rows])
    return attempt, replace(verification, inliers=inliers)


def _unrefined(attempt: Attempt, matches: Matches) -> RefinedPoints:
    keypoints = matched_keypoints(attempt.features, matches)
    none = np.zeros(len(matches), np.bool_)
    return RefinedPoints(keypoints[1].xy, similarities(*keypoints), none)


def _found(attempt: Attempt, verification: Verification, options: Options) -> Putative | None:
    cameras = known_cameras(options.verify) if verification.kind == "pose" else None
    band = Band.of(verification, options.verify.threshold_px, cameras)
    if band is None:
        return None
    points0, points1 = (
        np.asarray(features.keypoints.xy, np.float64) for features in attempt.features
    )
    if cameras is not None:
        points0, points1 = cameras[0].undistorted(points0), cameras[1].undistorted(points1)
    # Doubtful matches that do not agree with the geometry are no obstacle.
    judged = attempt.judged
    taken = judged.matches.pairs[judged.returned | verification.inliers]
    return find_guided(attempt.features, (points0, points1), taken, band)


def _least(options: Options) -> float:
    """Return the least confidence of an added match: it is returned, or counts for the geometry."""
    return min(options.judge.min_confidence, support_confidence(options.verify.kind))


def _with_context(found: Putative, attempt: Attempt, options: Options) -> Putative:
    """Return the guided matches, followed by all others that may agree with them."""
    others = putative(*attempt.features, options.match)
    matches = join_matches(found.matches, others.matches)
    return Putative(matches, np.concatenate([found.ratio, others.ratio]))


def _extended(
    attempt: Attempt, added: Matches, refined: RefinedPoints | None, options: Options
) -> Attempt:
    """Append matches, in the order of keypoints of image 0."""
    judged = attempt.judged
    old = judged.matches
    matches = join_matches(old, added)
    is_returned = np.ones(len(added), np.bool_)
    if added.confidence is not None:
        is_returned = np.asarray(added.confidence >= options.judge.min_confidence)
    points = None
    if judged.refined is not None and refined is not None:
        points = join_points(judged.refined, refined)
    guided: Bool = np.arange(len(matches)) >= len(old)
    returned = np.concatenate([judged.returned, is_returned])
    order = np.argsort(matches.pairs[:, 0], kind="stable")
    extended = JudgedMatches(
        matches[order],
        None if points is None else points[order],
        judged.putative,
        returned[order],
    )
    return replace(attempt, judged=extended, guided=guided[order])
