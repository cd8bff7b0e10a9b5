"""Logistic regression with non-negative coefficients, cross-validated over scenes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from matchserve.types import Bool, Float64
from training.errors import DataError


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """The model log odds = intercept + rows @ coefficients."""

    intercept: float
    coefficients: Float64

    def probability(self, rows: Float64) -> Float64:
        """Return the probability (N,) of each row (N, F)."""
        return logistic(self.intercept + rows @ self.coefficients)


def logistic(logit: Float64) -> Float64:
    """Return 1 / (1 + exp(-logit)) without overflow."""
    return np.asarray(expit(logit))


def at_prior(probability: float, prior: float) -> float:
    """Rescale a probability fitted at prior 0.5 to another prior."""
    odds = probability / (1 - probability) * prior / (1 - prior)
    return odds / (1 + odds)


def class_weights(is_same: Bool, prior: float) -> Float64:
    """Return weights of mean 1 that give pairs of the same scene a total share of `prior`."""
    same = max(int(is_same.sum()), 1)
    different = max(len(is_same) - same, 1)
    weights = np.where(is_same, prior / same, (1 - prior) / different)
    return np.asarray(weights * len(is_same))


def fit_logistic(rows: Float64, is_same: Bool, weights: Float64, *, penalty: float = 1.0) -> Fit:
    """Fit rows (N, F) to labels (N,) with coefficients of at least 0.

    Minimises the weighted log loss plus `penalty` / 2 times the squared coefficients of the
    standardised features. The penalty has the weight of that many pairs: without it, labels that a
    line separates would give probabilities of exactly 0 and 1.
    """
    spread = np.maximum(rows.std(axis=0), 1e-6)
    centre = rows.mean(axis=0)
    design = np.column_stack([np.ones(len(rows)), (rows - centre) / spread])
    ridge = np.concatenate([[0.0], np.full(rows.shape[1], penalty)])

    def loss_and_gradient(theta: Float64) -> tuple[float, Float64]:
        logit = design @ theta
        loss = weights @ np.logaddexp(0, np.where(is_same, -logit, logit))
        gradient = design.T @ (weights * (expit(logit) - is_same)) + ridge * theta
        return float(loss + 0.5 * ridge @ theta**2), gradient

    solved = minimize(
        loss_and_gradient,
        np.zeros(design.shape[1]),
        method="L-BFGS-B",
        jac=True,
        bounds=[(None, None), *[(0.0, None)] * rows.shape[1]],
        # The loss is convex and cheap: solve it to the last digits, so that cards do not depend on
        # where an optimiser stopped.
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 1000},
    )
    slopes = solved.x[1:] / spread
    return Fit(float(solved.x[0] - slopes @ centre), slopes)


def held_out_probability(
    rows: Float64,
    is_same: Bool,
    folds: NDArray[np.int64],
    *,
    prior: float,
    penalty: float = 1.0,
) -> Float64:
    """Return the probability of each pair by a fit that saw neither of its two scenes.

    `folds` (N, 2) holds the folds of the two scenes of each pair. A pair whose scenes are in the
    folds a and b is judged by a fit on the pairs with no scene in either.

    Raises:
        DataError: there are too few scenes for that.
    """
    probability = np.empty(len(rows))
    low, high = folds.min(axis=1), folds.max(axis=1)
    for a, b in sorted(set(zip(low.tolist(), high.tolist(), strict=True))):
        fitted = fitted_rows(folds, a, b)
        judged = (low == a) & (high == b)
        if not is_same[fitted].any() or is_same[fitted].all():
            raise DataError(
                "too few scenes to judge a calibration by scenes it was not fitted on; "
                "give at least a dozen, or more pairs"
            )
        weights = class_weights(is_same[fitted], prior)
        fit = fit_logistic(rows[fitted], is_same[fitted], weights, penalty=penalty)
        probability[judged] = fit.probability(rows[judged])
    return probability


def fitted_rows(folds: NDArray[np.int64], a: int, b: int) -> Bool:
    """Return which pairs have no scene in fold `a` or `b`."""
    return np.asarray(~np.isin(folds, (a, b)).any(axis=1))


def divide_scenes(scenes: Sequence[str], count: int, seed: int) -> dict[str, int]:
    """Assign scenes to `count` folds at random; fold sizes differ by at most one."""
    names = sorted(set(scenes))
    order = np.random.default_rng(seed).permutation(len(names))
    return {names[row]: number % count for number, row in enumerate(order)}
