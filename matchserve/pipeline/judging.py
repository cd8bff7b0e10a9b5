"""Judge putative matches: confidence, sub-pixel refinement, one match for each position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from matchserve import defaults
from matchserve.errors import InvalidParameter
from matchserve.models.card import ModelCard
from matchserve.types import Bool, Features, Float32, Image, Keypoints, Matches, RefinedPoints
from matchserve.vision.arrays import positions
from matchserve.vision.confidence import first_cues, second_cues
from matchserve.vision.matching import MatchOptions, Putative, match, putative
from matchserve.vision.quantised import Product
from matchserve.vision.refine import Refinement, refine, refine_some

RefineKind = Literal["none", "affine"]


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """Which matches are returned, and whether their points are refined.

    Matches with less than `min_confidence` are not returned, and of several matches that share a
    position only the most confident one is; 0 returns every mutual nearest neighbour.
    """

    min_confidence: float = defaults.MIN_CONFIDENCE
    refine: RefineKind = defaults.REFINE

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_confidence <= 1.0:
            raise InvalidParameter(f"min_confidence is {self.min_confidence}, not in 0..1")
        if self.refine not in ("none", "affine"):
            raise InvalidParameter(f"refine is {self.refine!r}, not none or affine")


@dataclass(frozen=True, slots=True, eq=False)
class JudgedMatches:
    """Matches with their confidence, and their refined points if there are any.

    `putative` is the number of mutual nearest neighbours before any was dropped. `returned` (M,)
    marks the matches that are returned: the others are only good enough to fit the geometry.
    """

    matches: Matches
    refined: RefinedPoints | None
    putative: int
    returned: Bool

    def points1(self, keypoints1: Keypoints) -> Float32:
        """Points of image 1, (M, 2): refined ones where there are any."""
        if self.refined is not None:
            return self.refined.xy1
        return keypoints1.xy[self.matches.pairs[:, 1]]

    @property
    def expected_right(self) -> float:
        """Expected number of right matches: the sum of the confidences."""
        return 0.0 if self.matches.confidence is None else float(self.matches.confidence.sum())


def find_matches(
    features: tuple[Features, Features],
    images: tuple[Image, Image] | None,
    card: ModelCard,
    match_options: MatchOptions,
    options: JudgeOptions,
    product: Product | None = None,
    support: float = defaults.SUPPORT_CONFIDENCE,
) -> JudgedMatches:
    """Match two described images and judge the matches; without images nothing is refined.

    With `product`, neighbours are searched as `vision.matching.putative` says. Matches with a
    confidence of at least `support` are kept for the geometry.

    Raises:
        FeatureMismatch: the images were described by different models.
    """
    if images is None or options.refine == "none":
        images = None
    if card.confidence is None or features[0].model != card.name:
        return _unjudged(features, images, match_options)
    found = putative(*features, match_options, product)
    keypoints = matched_keypoints(features, found.matches)
    confidence, refinement = judge(found, keypoints, images, card)
    matches = replace(found.matches, confidence=confidence)
    points = None if refinement is None else _points(refinement)
    if options.min_confidence == 0:
        return _all_returned(matches, points)
    # Progressive sampling is not misled by doubtful matches, and needs them where few are sure
    # (docs/research/match-quality.md).
    least = min(options.min_confidence, support)
    rows = np.flatnonzero(confidence >= least)
    rows = rows[one_for_each_position(keypoints, confidence, rows)]
    kept = None if points is None else points[rows]
    returned = np.asarray(confidence[rows] >= options.min_confidence)
    return JudgedMatches(matches[rows], kept, len(matches), returned)


def support_confidence(kind: str | None) -> float:
    """Return the least confidence of a match that a geometry of this kind is fitted to."""
    is_simple = kind in ("similarity", "affine", "auto")
    return defaults.REGISTRATION_SUPPORT if is_simple else defaults.SUPPORT_CONFIDENCE


def _all_returned(matches: Matches, points: RefinedPoints | None) -> JudgedMatches:
    return JudgedMatches(matches, points, len(matches), np.ones(len(matches), np.bool_))


def _unjudged(
    features: tuple[Features, Features],
    images: tuple[Image, Image] | None,
    options: MatchOptions,
) -> JudgedMatches:
    """Matches of a model without networks that judge matches; they may still be refined."""
    matches = match(*features, options)
    if images is None:
        return _all_returned(matches, None)
    return _all_returned(matches, _points(refine(images, matched_keypoints(features, matches))))


def judge(
    found: Putative,
    keypoints: tuple[Keypoints, Keypoints],
    images: tuple[Image, Image] | None,
    card: ModelCard,
) -> tuple[Float32, Refinement | None]:
    """Evaluate both networks, and refine in between what the first one finds worth it."""
    if card.confidence is None:
        raise ValueError("the card has no networks that judge matches")
    first, second = card.confidence.networks
    cues = first_cues(found, keypoints)
    judged = first.probability(cues.rows)
    refinement = None
    if images is not None:
        refinement = refine_some(images, keypoints, judged >= card.confidence.refine_from)
    return second.probability(second_cues(cues, judged, refinement)), refinement


def one_for_each_position(
    keypoints: tuple[Keypoints, Keypoints], sureness: Float32, rows: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Indices into `rows`, ascending: of those that share a position in an image, the surest."""
    order = np.argsort(-sureness[rows], kind="stable")
    for side in keypoints:
        _, first = np.unique(positions(side.xy[rows[order]]), return_index=True)
        order = order[np.sort(first)]
    return np.sort(order)


def matched_keypoints(
    features: tuple[Features, Features], matches: Matches
) -> tuple[Keypoints, Keypoints]:
    """Return the keypoints of both images, row i matched with row i."""
    return (
        features[0].keypoints[matches.pairs[:, 0]],
        features[1].keypoints[matches.pairs[:, 1]],
    )


def _points(refinement: Refinement) -> RefinedPoints:
    return RefinedPoints(refinement.xy1, refinement.affine, refinement.is_refined)
