"""How good probabilities are: Brier score, log loss, AUC, calibration error, reliability bins.

All figures weigh pairs so that `prior` of them show one scene, as the fit does.
"""

from __future__ import annotations

import numpy as np

from matchserve.models.calibration import ReliabilityBin
from matchserve.types import Bool, Float64

BINS = 10


def figures(probability: Float64, is_same: Bool, weights: Float64) -> dict[str, float]:
    """The figures of a card: lower is better for all but `auc`."""
    share = weights / weights.sum()
    truth = is_same.astype(np.float64)
    loss = -np.log(np.where(is_same, probability, 1 - probability))
    bins = reliability(probability, is_same, weights)
    mass = [share[_bin_of(probability) == number].sum() for number in range(BINS)]
    gaps = [abs(b.predicted - b.observed) for b in bins]
    return {
        "brier": float(share @ (probability - truth) ** 2),
        "log_loss": float(share @ loss),
        "auc": auc(probability, is_same),
        "expected_calibration_error": float(np.dot([m for m in mass if m > 0], gaps)),
    }


def auc(score: Float64, is_same: Bool) -> float:
    """The chance that a pair of one scene scores above one of two; ties count half."""
    values, group = np.unique(score, return_inverse=True)
    same = np.bincount(group[is_same], minlength=len(values))
    different = np.bincount(group[~is_same], minlength=len(values))
    below = np.cumsum(different) - different
    won = float(same @ (below + 0.5 * different))
    return won / max(float(same.sum()) * float(different.sum()), 1.0)


def reliability(
    probability: Float64, is_same: Bool, weights: Float64
) -> tuple[ReliabilityBin, ...]:
    """Ten bins of equal width, those without a pair left out."""
    number_of = _bin_of(probability)
    found = []
    for number in np.unique(number_of):
        held = number_of == number
        weight = weights[held] / weights[held].sum()
        found.append(
            ReliabilityBin(
                predicted=round(float(weight @ probability[held]), 4),
                observed=round(float(weight @ is_same[held]), 4),
                same=int(is_same[held].sum()),
                different=int((~is_same[held]).sum()),
            )
        )
    return tuple(found)


def _bin_of(probability: Float64) -> np.ndarray:
    return np.minimum((BINS * probability).astype(np.int64), BINS - 1)
