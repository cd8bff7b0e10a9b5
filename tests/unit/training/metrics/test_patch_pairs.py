import numpy as np
import pytest

from matchserve.errors import InvalidParameter
from training.metrics.patch_pairs import (
    average_precision,
    fpr95,
    fpr95_hynet,
    precision_recall,
)

DISTANCES = np.concatenate([np.linspace(0.1, 1.0, 20), np.linspace(0.9, 1.8, 20)])
LABELS = np.r_[np.ones(20), np.zeros(20)].astype(int)


def test_fpr95_golden_toy() -> None:
    assert fpr95(DISTANCES, LABELS) == pytest.approx(0.10)
    assert fpr95_hynet(DISTANCES, LABELS) == pytest.approx(0.15)


def test_fpr95_is_zero_when_separated_and_invariant_to_monotone_maps() -> None:
    rng = np.random.default_rng(0)
    d, labels = rng.random(500), rng.random(500) < 0.5
    assert fpr95(np.where(labels, d, d + 2), labels) == 0.0
    assert fpr95(d, labels) == fpr95(np.exp(3 * d), labels)


def test_fpr95_ranks_ties_at_random() -> None:
    labels = np.arange(20_000) < 10_000
    # Equal distances say nothing, whichever kind is listed first: 95 % of both are accepted.
    for listed in (labels, ~labels):
        assert fpr95(np.zeros(len(labels)), listed) == pytest.approx(0.95, abs=0.01)
    assert fpr95(np.zeros(len(labels)), labels) == fpr95(np.zeros(len(labels)), labels)


def test_fpr95_needs_both_kinds() -> None:
    with pytest.raises(InvalidParameter):
        fpr95(np.zeros(3), np.ones(3))


def test_precision_recall_golden_toy() -> None:
    curve = precision_recall(np.array([0.9, 0.8, 0.7, 0.6]), np.array([1, 0, 1, 1]))
    np.testing.assert_allclose(curve.precision, [1, 1, 0.5, 2 / 3, 0.75])
    np.testing.assert_allclose(curve.recall, [0, 1 / 3, 1 / 3, 2 / 3, 1])
    assert curve.average_precision == pytest.approx(0.763889, abs=5e-7)


def test_average_precision_with_more_positives_than_listed() -> None:
    scores, labels = np.array([0.9, 0.8, 0.7, 0.6]), np.array([1, 0, 1, 1])
    assert average_precision(scores, labels, positives=4) == pytest.approx(0.572917, abs=5e-7)
    with pytest.raises(InvalidParameter, match="2 positives"):
        average_precision(scores, labels, positives=2)


def test_average_precision_cuts_minus_infinity() -> None:
    scores = np.array([0.9, -np.inf])
    assert average_precision(scores, np.array([1, 1])) == pytest.approx(0.5)
