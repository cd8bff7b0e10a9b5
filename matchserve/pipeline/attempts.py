"""Described and judged images, and how the matches of several views become one set."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from matchserve.clock import Call
from matchserve.libraries import import_faiss, matching_device
from matchserve.models.card import ModelCard
from matchserve.models.integer_product import integer_product
from matchserve.options import Options
from matchserve.pipeline.judging import JudgedMatches, find_matches, support_confidence
from matchserve.types import (
    Bool,
    Features,
    Float32,
    Image,
    Keypoints,
    Matches,
    OrientationUsed,
    RefinedPoints,
    Verification,
)
from matchserve.vision.geometry import verify
from matchserve.vision.views import SyntheticView

# Keypoints of one corner found in several views lie at most about this far apart, in pixels: a
# guess, not a measured value.
SAME_POINT_PX = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """Both images described in one orientation, and their judged matches.

    `guided` (M,) marks the matches that were found along the geometry; None if there was no such
    search.
    """

    features: tuple[Features, Features]
    judged: JudgedMatches
    orientation: OrientationUsed
    guided: Bool | None = None

    @property
    def strength(self) -> float:
        """Expected number of right matches; their number if the model cannot judge matches."""
        judged = self.judged
        return (
            float(len(judged.matches))
            if judged.matches.confidence is None
            else judged.expected_right
        )

    def points(self) -> tuple[Float32, Float32]:
        """Return the matched points of both images, refined where they could be."""
        features0, features1 = self.features
        rows = self.judged.matches.pairs[:, 0]
        return features0.keypoints.xy[rows], self.judged.points1(features1.keypoints)


def judge_pair(
    features: tuple[Features, Features],
    images: tuple[Image, Image] | None,
    card: ModelCard,
    options: Options,
    call: Call,
) -> JudgedMatches:
    """Find and judge the matches of two described images."""
    with call.clock.stage("match"):
        # OpenMP keeps this number per thread: it changes nothing for other calls.
        import_faiss().omp_set_num_threads(call.threads())
        product = integer_product() if options.fast and matching_device() is None else None
        support = support_confidence(options.verify.kind)
        return find_matches(features, images, card, options.match, options.judge, product, support)


def verify_attempt(attempt: Attempt, options: Options, call: Call) -> Verification:
    """Fit the geometry of judged matches."""
    features0, features1 = attempt.features
    confidence = attempt.judged.matches.confidence
    with call.clock.stage("verify"):
        return verify(
            *attempt.points(),
            (features0.size, features1.size),
            replace(options.verify, fast=True) if options.fast else options.verify,
            # Raw matches are verified as they always were, by uniform samples.
            confidence if options.judge.min_confidence > 0 else None,
            attempt.judged.putative,
        )


def as_sent(
    attempt: Attempt, views: tuple[SyntheticView, SyntheticView], like: tuple[Features, Features]
) -> Attempt:
    """Map the matches of two views to the images as sent; only matched keypoints are kept.

    `like` are features of the images as sent.
    """
    judged = attempt.judged
    sides = []
    for side, (view, frontal) in enumerate(zip(views, like, strict=True)):
        rows = judged.matches.pairs[:, side]
        features = attempt.features[side]
        keypoints = view.keypoints_as_sent(
            features.keypoints[rows], is_upright=attempt.orientation != "oriented"
        )
        sides.append(replace(frontal, keypoints=keypoints, descriptors=features.descriptors[rows]))
    numbers = np.arange(len(judged.matches), dtype=np.int32)
    matches = replace(judged.matches, pairs=np.stack([numbers, numbers], axis=1))
    refined = None if judged.refined is None else _refined_as_sent(judged.refined, views)
    mapped = replace(judged, matches=matches, refined=refined)
    return Attempt((sides[0], sides[1]), mapped, attempt.orientation)


def joined(one: Attempt, other: Attempt) -> Attempt:
    """Join the matches of two attempts; of those that share a position the surest one is kept."""
    features = (
        _joined_features(one.features[0], other.features[0]),
        _joined_features(one.features[1], other.features[1]),
    )
    first, second = one.judged, other.judged
    offset = np.array([len(one.features[0]), len(one.features[1])], np.int32)
    matches = join_matches(first.matches, second.matches, offset)
    refined = None
    if first.refined is not None and second.refined is not None:
        refined = join_points(first.refined, second.refined)
    returned = np.concatenate([first.returned, second.returned])
    judged = JudgedMatches(matches, refined, first.putative + second.putative, returned)
    attempt = Attempt(features, judged, one.orientation)
    rows = np.flatnonzero(_is_first_at_its_place(attempt))
    kept = replace(
        judged,
        matches=matches[rows],
        refined=None if refined is None else refined[rows],
        returned=returned[rows],
    )
    return replace(attempt, judged=kept)


def _refined_as_sent(
    refined: RefinedPoints, views: tuple[SyntheticView, SyntheticView]
) -> RefinedPoints:
    affine = views[1].back @ refined.affine @ views[0].linear
    xy1 = views[1].to_sent(refined.xy1)
    return RefinedPoints(xy1.astype(np.float32), affine.astype(np.float32), refined.is_refined)


def _joined_features(one: Features, other: Features) -> Features:
    first, second = one.keypoints, other.keypoints
    keypoints = Keypoints(
        *(
            np.concatenate([getattr(first, name), getattr(second, name)])
            for name in ("xy", "sigma", "angle", "score")
        )
    )
    descriptors = np.concatenate([one.descriptors, other.descriptors])
    return replace(one, keypoints=keypoints, descriptors=descriptors)


def join_matches(one: Matches, other: Matches, offset: NDArray[np.int32] | int = 0) -> Matches:
    """Append matches whose indices begin at `offset`."""
    confidence = None
    if one.confidence is not None and other.confidence is not None:
        confidence = np.concatenate([one.confidence, other.confidence])
    return Matches(
        np.concatenate([one.pairs, other.pairs + offset]),
        np.concatenate([one.distance, other.distance]),
        np.concatenate([one.score, other.score]),
        confidence,
    )


def join_points(one: RefinedPoints, other: RefinedPoints) -> RefinedPoints:
    """Append the refined points of further matches."""
    return RefinedPoints(
        np.concatenate([one.xy1, other.xy1]),
        np.concatenate([one.affine, other.affine]),
        np.concatenate([one.is_refined, other.is_refined]),
    )


def _is_first_at_its_place(attempt: Attempt) -> Bool:
    """Mark the matches of which none that is surer shares a position, in either image."""
    matches = attempt.judged.matches
    sureness = matches.score if matches.confidence is None else matches.confidence
    order = np.argsort(-sureness, kind="stable")
    for points in attempt.points():
        cells = np.round(points[order] / SAME_POINT_PX).astype(np.int64)
        _, first = np.unique(cells, axis=0, return_index=True)
        order = order[np.sort(first)]
    kept = np.zeros(len(matches), np.bool_)
    kept[order] = True
    return kept
