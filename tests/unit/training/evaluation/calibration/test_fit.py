"""The fit on numbers whose truth is known, and the figures by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from matchserve.models.calibration import ReliabilityBin
from matchserve.types import Bool, Float64
from matchserve.vision.evidence import Evidence
from training.errors import DataError
from training.evaluation.calibration.calibrate import FitOptions, fit_calibration
from training.evaluation.calibration.diagram import interval
from training.evaluation.calibration.fit import (
    at_prior,
    class_weights,
    divide_scenes,
    fit_logistic,
    fitted_rows,
    held_out_probability,
    logistic,
)
from training.evaluation.calibration.measure import Measured
from training.evaluation.calibration.pairs import ImagePair, Setting
from training.evaluation.calibration.scoring import auc, probability_scores, reliability


def drawn(
    slopes: list[float], intercept: float, count: int = 20_000, seed: int = 0
) -> tuple[Float64, Bool]:
    rng = np.random.default_rng(seed)
    rows = rng.normal(
        [2.0, -1.0, 0.3][: len(slopes)], [1.5, 0.7, 0.2][: len(slopes)], (count, len(slopes))
    )
    truth = logistic(intercept + rows @ np.array(slopes))
    return rows, np.asarray(rng.random(count) < truth)


def test_the_fit_recovers_the_coefficients_that_made_the_data() -> None:
    rows, is_same = drawn([1.2, 0.8, 3.0], -2.5)
    fit = fit_logistic(rows, is_same, np.ones(len(rows)))
    assert fit.intercept == pytest.approx(-2.5, abs=0.15)
    np.testing.assert_allclose(fit.coefficients, [1.2, 0.8, 3.0], atol=0.25)
    assert fit.probability(rows).mean() == pytest.approx(is_same.mean(), abs=1e-3)


@pytest.mark.parametrize(
    ("slopes", "intercept", "count", "seed", "penalty", "is_weighted", "expected"),
    [
        (
            [1.2, 0.8, 3.0], -2.5, 20_000, 0, 1.0, False,
            [-2.4712459556272295, 1.1748692788360944, 0.744691774144663, 2.949946554352103],
        ),
        (
            [1.2, 0.8], -4.0, 20_000, 0, 1.0, True,
            [-2.4735766685732394, 1.219849743438894, 0.8397916450704174],
        ),
        (
            [1.5, -1.0, 0.5], -1.0, 20_000, 1, 1.0, False,
            [-0.06439434794759968, 1.4060825080256965, 0.0, 0.5971234763299818],
        ),
        (
            [0.7, 0.4], 0.2, 60, 3, 1.0, True,
            [-0.5868043176551387, 0.4645836960099307, 0.1185174886178105],
        ),
        ([30.0], -60.0, 500, 2, 0.01, False, [-38.50214121803477, 19.152417209019767]),
    ],
)  # fmt: skip
def test_the_fit_equals_coefficients_recorded_from_newtons_method(
    slopes: list[float],
    intercept: float,
    count: int,
    seed: int,
    penalty: float,
    is_weighted: bool,
    expected: list[float],
) -> None:
    """Recorded from the projected Newton iteration that cards were calibrated with before."""
    rows, is_same = drawn(slopes, intercept, count, seed)
    weights = class_weights(is_same, 0.5) if is_weighted else np.ones(len(rows))
    fit = fit_logistic(rows, is_same, weights, penalty=penalty)
    np.testing.assert_allclose([fit.intercept, *fit.coefficients], expected, rtol=1e-6, atol=1e-9)


def test_a_prior_moves_the_intercept_by_its_log_odds() -> None:
    rows, is_same = drawn([1.2, 0.8], -4.0)
    share = is_same.mean()
    even = fit_logistic(rows, is_same, class_weights(is_same, 0.5))
    as_drawn = fit_logistic(rows, is_same, class_weights(is_same, share))
    np.testing.assert_allclose(even.coefficients, as_drawn.coefficients, atol=0.2)
    expected = as_drawn.intercept - np.log(share / (1 - share))
    assert even.intercept == pytest.approx(expected, abs=0.4)
    weights = class_weights(is_same, 0.5)
    assert weights[is_same].sum() == pytest.approx(weights[~is_same].sum())


def test_no_coefficient_is_negative_and_the_rest_make_the_best_of_it() -> None:
    rows, is_same = drawn([1.2, -0.8], -2.0)
    fit = fit_logistic(rows, is_same, np.ones(len(rows)))
    assert fit.coefficients[1] == 0.0
    alone = fit_logistic(rows[:, :1], is_same, np.ones(len(rows)))
    assert fit.coefficients[0] == pytest.approx(alone.coefficients[0], rel=1e-6)
    assert fit.intercept == pytest.approx(alone.intercept, rel=1e-6)


def test_classes_that_a_line_divides_are_not_told_apart_with_certainty() -> None:
    rows = np.linspace(-1, 1, 40)[:, None]
    fit = fit_logistic(rows, rows[:, 0] > 0, np.ones(40))
    assert 0.9 < fit.probability(np.array([[1.0]]))[0] < 0.9999


def test_a_constant_feature_harms_nothing() -> None:
    rows, is_same = drawn([1.2], -2.0, 2000)
    wide = np.column_stack([rows, np.zeros(len(rows))])
    one, two = (fit_logistic(r, is_same, np.ones(len(r))) for r in (rows, wide))
    np.testing.assert_allclose(two.probability(wide), one.probability(rows), atol=1e-6)


def test_a_pair_is_judged_by_fits_that_saw_neither_of_its_scenes() -> None:
    scenes = [f"s{n}" for n in range(23)]
    fold_of = divide_scenes(scenes, 5, seed=3)
    assert set(fold_of) == set(scenes)
    sizes = np.bincount(list(fold_of.values()))
    assert sizes.max() - sizes.min() <= 1
    pairs = list(itertools.combinations_with_replacement(scenes, 2))
    folds = np.array([[fold_of[a], fold_of[b]] for a, b in pairs])
    for a, b in itertools.combinations_with_replacement(range(5), 2):
        seen = {s for row in np.flatnonzero(fitted_rows(folds, a, b)) for s in pairs[row]}
        judged = {
            s for p, f in zip(pairs, folds.tolist(), strict=True) if set(f) == {a, b} for s in p
        }
        assert seen
        assert judged
        assert not seen & judged


def test_a_scene_cannot_teach_its_own_answer() -> None:
    """One scene alone has a telltale feature: held out, its pairs get no use of it."""
    folds = np.repeat(np.arange(5), 40)[:, None].repeat(2, axis=1)
    is_same = np.tile([True, False], 100)
    telltale = np.where((folds[:, 0] == 2) & is_same, 5.0, 0.0)[:, None]
    held = held_out_probability(telltale, is_same, folds, prior=0.5)
    np.testing.assert_allclose(held[folds[:, 0] == 2], 0.5, atol=1e-6)
    whole = fit_logistic(telltale, is_same, np.ones(200)).probability(telltale)
    assert whole[(folds[:, 0] == 2) & is_same].min() > 0.8


def test_two_scenes_are_too_few_to_judge_by() -> None:
    folds = np.array([[0, 0], [1, 1], [0, 1], [0, 1]])
    is_same = np.array([True, True, False, False])
    with pytest.raises(DataError, match="too few scenes"):
        held_out_probability(np.ones((4, 1)), is_same, folds, prior=0.5)


def test_limits_follow_the_prior() -> None:
    assert at_prior(0.2, 0.5) == pytest.approx(0.2)
    rare = fit_calibration(measured_pairs(), frozenset(), FitOptions(prior=0.001))
    assert rare.geometries["homography"].low == pytest.approx(0.001 / 101, rel=0.05)


def test_figures_of_a_small_table_by_hand() -> None:
    probability = np.array([0.95, 0.85, 0.15, 0.05])
    is_same = np.array([True, False, True, False])
    found = probability_scores(probability, is_same, np.ones(4))
    assert found["brier"] == pytest.approx((0.05**2 + 0.85**2 + 0.85**2 + 0.05**2) / 4)
    assert found["log_loss"] == pytest.approx(-(2 * np.log(0.95) + 2 * np.log(0.15)) / 4)
    assert found["auc"] == 0.75
    assert found["expected_calibration_error"] == pytest.approx((0.05 + 0.85 + 0.85 + 0.05) / 4)
    assert auc(np.full(4, 0.5), is_same) == 0.5
    bins = reliability(probability, is_same, np.ones(4))
    assert [(b.same, b.different) for b in bins] == [(0, 1), (1, 0), (0, 1), (1, 0)]


def test_true_probabilities_have_no_calibration_error() -> None:
    rng = np.random.default_rng(0)
    probability = rng.random(50_000)
    is_same = np.asarray(rng.random(50_000) < probability)
    found = probability_scores(probability, is_same, np.ones(50_000))
    assert found["expected_calibration_error"] < 0.01
    assert found["brier"] == pytest.approx(1 / 6, abs=0.005)


def test_bins_with_few_pairs_have_wide_intervals() -> None:
    few = ReliabilityBin(predicted=0.7, observed=1.0, same=1, different=0)
    many = ReliabilityBin(predicted=0.7, observed=0.7, same=700, different=300)
    assert interval(few, 1.0)[0] < 0.3
    low, high = interval(many, 1.0)
    assert 0.65 < low < 0.7 < high < 0.75
    # Five times as many pairs of two, each of a fifth of the weight: the same share.
    weighted = ReliabilityBin(predicted=0.7, observed=0.7, same=700, different=1500)
    low, high = interval(weighted, 5.0)
    assert 0.65 < low < 0.7 < high < 0.75


def measured_pairs(count: int = 300) -> list[Measured]:
    """Pairs of one scene with many inliers of many matches, pairs of two with few."""
    rng = np.random.default_rng(1)
    found = []
    for number in range(count):
        is_same = number % 3 == 0
        one = number % 10
        scenes = (f"s{one}", f"s{one if is_same else (one + 1 + number % 8) % 10}")
        inliers = int(rng.integers(15, 300) if is_same else rng.integers(0, 30))
        shown = Evidence(400, inliers, min(1.0, inliers / 150), -float(max(0, inliers - 20)))
        pair = ImagePair((f"{number}a", f"{number}b"), scenes, Setting(512, None))
        found.append(Measured(pair, {"homography": shown, "fundamental": shown}))
    return found


def test_a_fitted_calibration_is_monotone_limited_and_says_what_it_is_of() -> None:
    measured = measured_pairs()
    options = FitOptions(prior=0.5)
    made = fit_calibration(measured, frozenset({"s0", "s1", "s2"}), options, command="python …")
    assert made.command == "python …"
    assert (made.protocol["same"], made.protocol["different"]) == (100, 200)
    assert (made.protocol["scenes"], made.protocol["photographs"]) == (3, 7)
    fitted = made.geometries["fundamental"]
    assert fitted.low == pytest.approx(1 / 102, abs=1e-4)
    assert fitted.high == pytest.approx(1 - 1 / 202, abs=1e-4)
    values = [
        fitted.probability(Evidence(400, k, min(1.0, k / 150), -float(max(0, k - 20))))
        for k in range(400)
    ]
    assert values == sorted(values)
    assert values[0] < 0.1 < 0.9 < values[-1] <= fitted.high
    assert fitted.held_out["auc"] > 0.97
    assert sum(b.same + b.different for b in fitted.reliability) == 300


def test_pairs_of_one_kind_alone_are_refused() -> None:
    same = [m for m in measured_pairs() if m.pair.is_same]
    with pytest.raises(DataError, match="pairs of different scenes"):
        fit_calibration(same, frozenset(), FitOptions())
