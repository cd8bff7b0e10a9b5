from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from matchserve.types import Float64, VerifyKind
from matchserve.vision.affine_fits import draw_samples, fit_affine
from matchserve.vision.estimators import MAX_ITERATIONS, FitOptions
from matchserve.vision.geometry import VerifyChoice, VerifyOptions, verify

SIZES = ((600, 500), (600, 500))
SIMILARITY = np.array([[0.5, -0.6, 210.0], [0.6, 0.5, 40.0], [0.0, 0.0, 1.0]])
AFFINE = np.array([[0.5, -0.6, 210.0], [0.3, 0.9, -40.0], [0.0, 0.0, 1.0]])
TILTED = np.array([[0.9, -0.2, 60.0], [0.15, 1.05, -30.0], [6e-4, -4e-4, 1.0]])


def mapped(matrix: Float64, points: Float64) -> Float64:
    uvw = np.column_stack([points, np.ones(len(points))]) @ matrix.T
    return np.asarray(uvw[:, :2] / uvw[:, 2:])


def matches(
    matrix: Float64, right: int, wrong: int, seed: int = 0, noise: float = 0.4
) -> tuple[Float64, Float64]:
    rng = np.random.default_rng(seed)
    first = rng.uniform((0, 0), SIZES[0], (right + wrong, 2))
    second = mapped(matrix, first) + rng.normal(0, noise, first.shape)
    second[right:] = rng.uniform((0, 0), SIZES[1], (wrong, 2))
    return first, second


def naive_similarity_score(first: Float64, second: Float64, threshold_px: float) -> float:
    """The best MSAC score of all pairs of matches, by plain loops, within 5/3 of the threshold."""
    threshold_px *= 5 / 3
    best = 0.0
    points0, points1 = ([complex(*p) for p in side] for side in (first, second))
    for i, j in itertools.combinations(range(len(first)), 2):
        if abs(points0[i] - points0[j]) < 8:
            continue
        a = (points1[i] - points1[j]) / (points0[i] - points0[j])
        b = points1[i] - a * points0[i]
        errors = [abs(a * z + b - w) ** 2 for z, w in zip(points0, points1, strict=True)]
        best = max(best, sum(max(0.0, 1 - e / threshold_px**2) for e in errors))
    return best


@pytest.mark.parametrize("seed", range(5))
def test_no_pair_of_matches_is_better(seed: int) -> None:
    first, second = matches(SIMILARITY, 6, 34, seed)
    fit = fit_affine("similarity", first, second, FitOptions(3.0), None)
    assert fit.matrix is not None
    errors = ((mapped(fit.matrix, first) - second) ** 2).sum(axis=1)
    score = np.maximum(0, 1 - errors / 25).sum()
    assert score >= naive_similarity_score(first, second, 3.0) - 1e-3
    np.testing.assert_array_equal(fit.inliers, errors <= 9)


@pytest.mark.parametrize(
    ("kind", "truth", "right"), [("similarity", SIMILARITY, 8), ("affine", AFFINE, 25)]
)
@pytest.mark.parametrize("is_sorted", [False, True])
def test_few_right_matches_are_found_among_many_wrong_ones(
    kind: VerifyKind, truth: Float64, right: int, is_sorted: bool
) -> None:
    first, second = matches(truth, right, 100)
    confidence = np.full(len(first), 0.5, np.float32) if is_sorted else None
    found = verify(first, second, SIZES, VerifyOptions(kind), confidence)
    assert found.kind == kind
    assert found.matrix is not None
    assert found.inliers[:right].all()
    assert found.inliers.sum() <= right + 2
    assert found.confidence > 0.99
    corners = np.array([[0.0, 0.0], [599, 0], [599, 499], [0, 499]])
    assert np.abs(mapped(found.matrix, corners) - mapped(truth, corners)).max() < 3
    np.testing.assert_array_equal(found.matrix[2], [0, 0, 1])


def test_a_similarity_keeps_angles() -> None:
    first, second = matches(AFFINE, 60, 0)
    found = fit_affine("similarity", first, second, FitOptions(20.0), None)
    assert found.matrix is not None
    (a, b), (c, d) = found.matrix[:2, :2]
    assert a == pytest.approx(d)
    assert b == pytest.approx(-c)


@pytest.mark.parametrize("kind", ["similarity", "affine"])
def test_all_inliers_decide_by_least_squares(kind: str) -> None:
    """The noise of the result falls with the number of matches, as no sample's would."""
    first, second = matches(SIMILARITY, 900, 0, noise=1.0)
    fit = fit_affine(kind, first, second, FitOptions(5.0), None)
    assert fit.matrix is not None
    assert np.abs(mapped(fit.matrix, first) - mapped(SIMILARITY, first)).max() < 0.25


@pytest.mark.parametrize("size", [2, 3])
def test_samples_of_sorted_matches_begin_with_the_most_confident(size: int) -> None:
    samples = draw_samples(400, size, seed=0, is_sorted=True)
    assert samples.shape == (MAX_ITERATIONS, size)
    sure = next(n for n in itertools.count() if math.comb(n, size) >= MAX_ITERATIONS / 2)
    first, second = np.split(samples, [math.comb(sure, size)])
    assert {tuple(s) for s in first.tolist()} == set(itertools.combinations(range(sure), size))
    assert (np.diff(first[:, -1]) >= 0).all()
    assert (np.diff(second[:, 0]) >= 0).all()
    assert (second[:, 1:] < second[:, :1]).all()
    assert second[-1, 0] == 399
    # Uniform samples have all matches below n with a probability of about (n / 400)^size.
    assert np.mean(second[:, 0] < 200) == pytest.approx(0.5**size, abs=0.01)


@pytest.mark.parametrize(("count", "size"), [(100, 2), (30, 3), (3, 3), (2, 3), (0, 2)])
def test_all_samples_are_tried_if_they_are_few(count: int, size: int) -> None:
    samples = draw_samples(count, size, seed=0, is_sorted=True)
    assert {tuple(s) for s in samples.tolist()} == set(itertools.combinations(range(count), size))


def test_confident_matches_are_found_where_uniform_samples_fail() -> None:
    first, second = matches(SIMILARITY, 12, 3000)
    confidence = np.full(len(first), 0.1, np.float32)
    confidence[:12] = 0.3
    options = VerifyOptions("similarity")
    assert verify(first, second, SIZES, options, confidence).inliers[:12].all()


def test_the_seed_repeats_a_fit() -> None:
    first, second = matches(AFFINE, 30, 200)
    one, again, other = (
        fit_affine("affine", first, second, FitOptions(3.0, seed), None) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(np.asarray(one.matrix), np.asarray(again.matrix))
    np.testing.assert_array_equal(one.inliers[:30], other.inliers[:30])


@pytest.mark.parametrize(
    ("truth", "right", "kind"),
    [(SIMILARITY, 7, "similarity"), (SIMILARITY, 150, "similarity"), (TILTED, 150, "homography")],
)
def test_auto_chooses_what_chance_explains_least(
    truth: Float64, right: int, kind: VerifyKind
) -> None:
    first, second = matches(truth, right, 30)
    found = verify(first, second, SIZES, VerifyOptions("auto"), np.ones(len(first), np.float32))
    assert found.kind == kind
    assert found.reason.startswith(kind)
    assert found.inliers[:right].mean() > 0.95


@pytest.mark.parametrize("kind", ["similarity", "auto"])
def test_matches_that_were_chosen_from_many_are_weaker_evidence(kind: VerifyChoice) -> None:
    """Six of ten that agree are no chance; six of a thousand, chosen for agreeing, may be."""
    first, second = matches(SIMILARITY, 6, 4)
    confidence = np.ones(len(first), np.float32)
    alone, chosen = (
        verify(first, second, SIZES, VerifyOptions(kind), confidence, candidates)
        for candidates in (0, 1000)
    )
    assert alone.kind == chosen.kind == "similarity"
    np.testing.assert_array_equal(alone.inliers, chosen.inliers)
    assert alone.confidence > 0.999
    assert chosen.confidence < 0.5


def test_a_homography_of_matches_that_were_chosen_from_many_is_weaker_evidence() -> None:
    """Calibrations of `same_scene` see the evidence as it was when they were fitted."""
    first, second = matches(TILTED, 8, 4)
    confidence = np.ones(len(first), np.float32)
    alone, chosen = (
        verify(first, second, SIZES, VerifyOptions("homography"), confidence, candidates)
        for candidates in (0, 1000)
    )
    np.testing.assert_array_equal(alone.inliers, chosen.inliers)
    assert alone.confidence > 0.999
    assert chosen.confidence < 0.5
    assert chosen.log_nfa == alone.log_nfa
