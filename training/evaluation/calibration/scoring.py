"""Score probabilities: Brier score, log loss, AUC, calibration error and reliability bins.

`weights` give pairs of the same scene the share that the prior says, as in the fit.
"""

from __future__ import annotations

import numpy as np

from matchserve.models.calibration import ReliabilityBin
from matchserve.types import Bool, Float64

BINS = 10


def probability_scores(probability: Float64, is_same: Bool, weights: Float64) -> dict[str, float]:
    """Return the scores stored in a card; lower is better for all but `auc`."""
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
    """Return the probability that a pair of the same scene scores above one of different scenes.

    Ties count half.
    """
    values, group = np.unique(score, return_inverse=True)
    same = np.bincount(group[is_same], minlength=len(values))
    different = np.bincount(group[~is_same], minlength=len(values))
    below = np.cumsum(different) - different
    won = float(same @ (below + 0.5 * different))
    return won / max(float(same.sum()) * float(different.sum()), 1.0)


def reliability(
    probability: Float64, is_same: Bool, weights: Float64
) -> tuple[ReliabilityBin, ...]:
    """Return ten bins of equal width, without the empty ones."""
    bin_of = _bin_of(probability)
    bins = []
    for number in np.unique(bin_of):
        inside = bin_of == number
        weight = weights[inside] / weights[inside].sum()
        bins.append(
            ReliabilityBin(
                predicted=round(float(weight @ probability[inside]), 4),
                observed=round(float(weight @ is_same[inside]), 4),
                same=int(is_same[inside].sum()),
                different=int((~is_same[inside]).sum()),
            )
        )
    return tuple(bins)


def _bin_of(probability: Float64) -> np.ndarray:
    return np.minimum((BINS * probability).astype(np.int64), BINS - 1)
