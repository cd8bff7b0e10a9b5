"""Logistic regression with coefficients that are not negative, judged on scenes it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from matchserve.types import Bool, Float64
from training.errors import DataError

_MAX_STEPS = 200
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """log odds = intercept + rows @ coefficients."""

    intercept: float
    coefficients: Float64

    def probability(self, rows: Float64) -> Float64:
        """Of each row, unlimited."""
        return logistic(self.intercept + rows @ self.coefficients)


def logistic(logit: Float64) -> Float64:
    """1 / (1 + exp(-logit)), for any logit."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logit)))


def at_prior(probability: float, prior: float) -> float:
    """What is `probability` where one pair in two shows one scene, where `prior` of them do."""
    odds = probability / (1 - probability) * prior / (1 - prior)
    return odds / (1 + odds)


def class_weights(is_same: Bool, prior: float) -> Float64:
    """Weights, one on average, under which `prior` of all pairs show one scene."""
    same = max(int(is_same.sum()), 1)
    different = max(len(is_same) - same, 1)
    weights = np.where(is_same, prior / same, (1 - prior) / different)
    return np.asarray(weights * len(is_same))


def fit_logistic(rows: Float64, is_same: Bool, weights: Float64, *, penalty: float = 1.0) -> Fit:
    """Newton's method, projected: the weighted log loss plus `penalty` / 2 times squared slopes.

    The penalty is on slopes per standard deviation of a feature and counts as so many pairs: it
    keeps classes that a line divides from being told apart with certainty. No coefficient is
    below 0.
    """
    spread = np.maximum(rows.std(axis=0), 1e-6)
    centre = rows.mean(axis=0)
    design = np.column_stack([np.ones(len(rows)), (rows - centre) / spread])
    ridge = np.concatenate([[0.0], np.full(rows.shape[1], penalty)])
    theta = np.zeros(design.shape[1])
    for _ in range(_MAX_STEPS):
        probability = logistic(design @ theta)
        gradient = design.T @ (weights * (probability - is_same)) + ridge * theta
        # At its bound and pushed further: such a coefficient stays there in this step.
        held = (theta <= 0) & (gradient > 0)
        held[0] = False
        free = np.flatnonzero(~held)
        curvature = weights * probability * (1 - probability) + 1e-12
        hessian = (design[:, free].T * curvature) @ design[:, free] + np.diag(ridge[free] + 1e-9)
        step = np.zeros_like(theta)
        step[free] = np.linalg.solve(hessian, gradient[free])
        moved = _line_search(partial(_objective, design, is_same, weights, ridge), theta, step)
        if np.abs(moved - theta).max() < _TOLERANCE:
            break
        theta = moved
    slopes = theta[1:] / spread
    return Fit(float(theta[0] - slopes @ centre), slopes)


def held_out_probability(
    rows: Float64,
    is_same: Bool,
    folds: NDArray[np.int64],
    *,
    prior: float,
    penalty: float = 1.0,
) -> Float64:
    """Of each row, by a fit that saw neither of its two scenes.

    `folds` (N, 2) are those of the two scenes of each pair; a pair whose scenes are in folds a and
    b is judged by a fit on the pairs that have no scene in either.

    Raises:
        DataError: there are too few scenes for that.
    """
    probability = np.empty(len(rows))
    low, high = folds.min(axis=1), folds.max(axis=1)
    for a, b in sorted(set(zip(low.tolist(), high.tolist(), strict=True))):
        seen = fitted_rows(folds, a, b)
        judged = (low == a) & (high == b)
        if not is_same[seen].any() or is_same[seen].all():
            raise DataError(
                "too few scenes to judge a calibration by ones it was not fitted on; "
                "give at least a dozen, or more pairs"
            )
        weights = class_weights(is_same[seen], prior)
        fit = fit_logistic(rows[seen], is_same[seen], weights, penalty=penalty)
        probability[judged] = fit.probability(rows[judged])
    return probability


def fitted_rows(folds: NDArray[np.int64], a: int, b: int) -> Bool:
    """The pairs that may be fitted on to judge pairs of scenes in the folds `a` and `b`."""
    return np.asarray(~np.isin(folds, (a, b)).any(axis=1))


def divide_scenes(scenes: Sequence[str], count: int, seed: int) -> dict[str, int]:
    """A fold for each scene, at random, all folds of nearly one size."""
    names = sorted(set(scenes))
    order = np.random.default_rng(seed).permutation(len(names))
    return {names[row]: number % count for number, row in enumerate(order)}


def _objective(
    design: Float64, is_same: Bool, weights: Float64, ridge: Float64, theta: Float64
) -> float:
    logit = design @ theta
    loss = np.logaddexp(0, np.where(is_same, -logit, logit))
    return float(weights @ loss + 0.5 * ridge @ theta**2)


def _line_search(loss: Callable[[Float64], float], theta: Float64, step: Float64) -> Float64:
    """As much of the step as lowers the loss, no slope going below 0."""
    before = loss(theta)
    for halving in range(40):
        moved = theta - 0.5**halving * step
        moved[1:] = np.maximum(moved[1:], 0.0)
        if loss(moved) <= before:
            return moved
    return theta
