"""Judged matches on generated scenes: confidence means what it says, positions are distinct."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from matchserve import DetectOptions, JudgeOptions, Matcher, MatchOptions, Options, VerifyOptions
from matchserve.errors import InvalidParameter
from matchserve.options import RAW_OPTIONS
from matchserve.pattern import generate_pair
from matchserve.pipeline.judging import find_matches, support_confidence
from matchserve.types import Float32, Float64, MatchResult

SEEDS = range(6)


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher("compact")


@pytest.fixture(scope="module")
def results(matcher: Matcher) -> list[tuple[MatchResult, Float64]]:
    """All matches of generated pairs, with the true homography of each."""
    options = Options(judge=JudgeOptions(min_confidence=0), verify=VerifyOptions("none"))
    found = []
    for seed in SEEDS:
        first, second, homography = generate_pair((480, 360), seed=seed)
        found.append((matcher.match(first, second, options), homography))
    return found


def _errors(result: MatchResult, homography: Float64) -> tuple[Float64, Float64]:
    """Transfer errors of the keypoints and of the refined points."""

    def error(points0: Float32, points1: Float32) -> Float64:
        moved = np.c_[points0, np.ones(len(points0))] @ homography.T
        return np.asarray(np.linalg.norm(moved[:, :2] / moved[:, 2:] - points1, axis=1))

    return error(*result.keypoint_pairs()), error(*result.points())


def test_confident_matches_are_right(results: list[tuple[MatchResult, Float64]]) -> None:
    confidence, is_right = [], []
    for result, homography in results:
        assert result.matches.confidence is not None
        confidence.append(result.matches.confidence)
        is_right.append(_errors(result, homography)[1] <= 3)
    sure, right = np.concatenate(confidence), np.concatenate(is_right)
    assert (sure >= 0.9).sum() > 300
    assert right[sure >= 0.9].mean() >= 0.88
    assert right[sure < 0.2].mean() < 0.5


def test_refinement_brings_right_matches_nearer(
    results: list[tuple[MatchResult, Float64]],
) -> None:
    raw, refined = [], []
    for result, homography in results:
        before, after = _errors(result, homography)
        assert result.refined is not None
        kept = result.refined.is_refined & (before <= 3)
        raw.append(before[kept])
        refined.append(after[kept])
    assert np.median(np.concatenate(refined)) < 0.7 * np.median(np.concatenate(raw))


def test_affine_maps_are_those_of_the_homography(
    results: list[tuple[MatchResult, Float64]],
) -> None:
    result, homography = results[0]
    points0, _ = result.points()
    assert result.refined is not None
    assert result.matches.confidence is not None
    chosen = result.refined.is_refined & (result.matches.confidence > 0.9)
    truth = np.array([_jacobian(homography, xy) for xy in points0[chosen]])
    gap = np.linalg.norm(result.refined.affine[chosen] - truth, axis=(1, 2))
    assert np.median(gap) < 0.1


def test_default_matches_share_no_position(matcher: Matcher) -> None:
    first, second, _ = generate_pair((480, 360), seed=1)
    options = Options(detect=DetectOptions(duplicates=True), verify=VerifyOptions("none"))
    result = matcher.match(first, second, options)
    for points in result.keypoint_pairs():
        assert len(np.unique(points, axis=0)) == len(points)
    raw = matcher.match(first, second, RAW_OPTIONS)
    points0, _ = raw.keypoint_pairs()
    assert len(np.unique(points0, axis=0)) < len(points0)
    assert len(result.matches) < len(raw.matches)


def test_minimum_confidence_only_drops_matches(matcher: Matcher) -> None:
    first, second, _ = generate_pair((480, 360), seed=2)
    every = matcher.match(first, second, _with_minimum(0))
    some = matcher.match(first, second, _with_minimum(0.7))
    assert every.matches.confidence is not None
    expected = every.matches.pairs[every.matches.confidence >= 0.7].tolist()
    assert set(map(tuple, some.matches.pairs.tolist())) <= set(map(tuple, expected))
    assert len(some.matches) >= 0.95 * len(expected)
    assert some.matches.confidence is not None
    assert some.matches.confidence.min() >= 0.7


def test_a_similarity_is_fitted_to_more_doubtful_matches(matcher: Matcher) -> None:
    """What is returned stays the same: only the geometry sees more."""
    first, second, _ = generate_pair((480, 360), seed=1)
    features = (matcher.features(first), matcher.features(second))
    card, rule = matcher.descriptor.card, JudgeOptions()
    plain, wider = (
        find_matches(features, None, card, MatchOptions(), rule, support=support_confidence(kind))
        for kind in ("homography", "similarity")
    )
    assert len(wider.matches) > len(plain.matches)
    np.testing.assert_array_equal(
        wider.matches.pairs[wider.returned], plain.matches.pairs[plain.returned]
    )


def test_unrelated_images_have_few_confident_matches(matcher: Matcher) -> None:
    first, _, _ = generate_pair((480, 360), seed=3)
    _, other, _ = generate_pair((480, 360), seed=4)
    result = matcher.match(first, other)
    assert result.matches.confidence is not None
    assert result.matches.confidence.sum() < 20


def test_features_without_images_are_judged_but_not_refined(matcher: Matcher) -> None:
    first, second, _ = generate_pair((480, 360), seed=5)
    features = [matcher.features(image) for image in (first, second)]
    result = matcher.match_features(features[0], features[1])
    assert result.refined is None
    assert result.matches.confidence is not None
    assert len(result.matches) > 100


def test_model_without_networks_returns_all_matches(matcher: Matcher) -> None:
    class Unjudged:
        """The same descriptor with a card that has no networks."""

        card = matcher.descriptor.card.model_copy(update={"confidence": None})
        provider = matcher.descriptor.provider
        detector = None
        describe = staticmethod(matcher.descriptor.describe)
        describe_patches = staticmethod(matcher.descriptor.describe_patches)

    first, second, _ = generate_pair((480, 360), seed=0)
    result = Matcher(Unjudged()).match(first, second)
    assert result.matches.confidence is None
    assert result.refined is not None
    raw = matcher.match(first, second, replace(RAW_OPTIONS, detect=DetectOptions()))
    np.testing.assert_array_equal(result.matches.pairs, raw.matches.pairs)


@pytest.mark.parametrize("options", [{"min_confidence": 1.5}, {"refine": "magic"}])
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(options))):
        JudgeOptions(**options)  # type: ignore[arg-type]


def _with_minimum(confidence: float) -> Options:
    return Options(
        detect=DetectOptions(further_orientations=0),  # every position has one match then
        judge=JudgeOptions(min_confidence=confidence),
        verify=VerifyOptions("none"),
        orientation="oriented",
    )


def _jacobian(homography: Float64, xy: Float32) -> Float64:
    moved = homography @ np.array([*xy, 1.0])
    linear = homography[:2, :2] - np.outer(moved[:2] / moved[2], homography[2, :2])
    return np.asarray(linear / moved[2])
