"""Compare two models by a paired bootstrap over the units both were measured on.

Units of one group (the pairs of a sequence, the views of a photograph) are not independent.
Resampling whole groups gives the wider interval that accounts for this; both are printed.

A method that was trained with several seeds is one model here: a study names them NAME, NAME-seed1
and so on. The interval over groups then resamples the seeds of both methods too, so it says what a
new training of each would give.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from matchserve.types import Float64
from training.errors import DataError
from training.evaluation.protocol import BenchmarkResult, ModelResult
from training.metrics.metric import find_metric

ROUNDS = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Comparison:
    """The mean difference B - A of one metric, with its 95 % intervals.

    `low` and `high` come from resampling units, `group_low` and `group_high` from resampling
    groups, and seeds where a method has several. `better_share` is the share of group resamples in
    which B is better; 0.5 means that neither is.
    """

    figure: str
    units: int
    groups: int
    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    group_low: float
    group_high: float
    better_share: float
    seeds_a: int = 1
    seeds_b: int = 1

    @property
    def verdict(self) -> str:
        """Whether B is better, worse or not distinguishable at 95 %, by resampling groups."""
        sign = _sign(self.figure)
        low, high = sorted((sign * self.group_low, sign * self.group_high))
        if low > 0:
            return "B is better"
        return "B is worse" if high < 0 else "not distinguishable"


def compare(
    result_a: BenchmarkResult,
    model_a: str,
    result_b: BenchmarkResult,
    model_b: str,
    *,
    seed: int = 0,
) -> list[Comparison]:
    """Compare two models on every metric that has a direction and samples of both models.

    Raises:
        DataError: the results differ in data, protocol or units, or a model is not in its result.
    """
    for name in ("benchmark", "protocol", "digest"):
        if getattr(result_a, name) != getattr(result_b, name):
            raise DataError(f"the results differ in {name}: they cannot be compared")
    for result, model in ((result_a, model_a), (result_b, model_b)):
        if model not in result.models:
            raise DataError(f"no model {model}; there are {', '.join(result.models)}")
    seeds_a, seeds_b = seeds_of(result_a, model_a), seeds_of(result_b, model_b)
    first = seeds_a[0]
    if not first.units or any(one.units != first.units for one in (*seeds_a, *seeds_b)):
        raise DataError("the results have no units in common to resample")
    comparisons = []
    for figure in (name for name in first.samples if _sign(name)):
        left, right = (
            [np.array(one.samples.get(figure, [])) for one in seeds] for seeds in (seeds_a, seeds_b)
        )
        if all(v.shape == left[0].shape and np.isfinite(v).all() for v in (*left, *right)):
            comparison = bootstrap(figure, np.stack(left), np.stack(right), first.groups, seed=seed)
            comparisons.append(comparison)
    return comparisons


def seeds_of(result: BenchmarkResult, model: str) -> list[ModelResult]:
    """Return the result of `model` and of its other seeds, which a study names MODEL-seedN."""
    name = re.compile(re.escape(model) + r"(-seed\d+)?")
    return [model for key, model in result.models.items() if name.fullmatch(key)]


def bootstrap(
    figure: str, a: Float64, b: Float64, groups: tuple[str, ...], *, seed: int = 0
) -> Comparison:
    """Resample the differences b - a of the metric named `figure`, by units and by groups.

    `a` and `b` are values by unit, (N,), or by seed and unit, (S, N); with several seeds, the
    resampling by groups draws seeds as well.
    """
    rng = np.random.default_rng(seed)
    a, b = np.atleast_2d(a), np.atleast_2d(b)
    difference = b.mean(axis=0) - a.mean(axis=0)
    drawn = rng.integers(0, len(difference), (ROUNDS, len(difference)))
    means = difference[drawn].mean(axis=1)
    _, member = np.unique(np.array(groups), return_inverse=True)
    count = int(member.max()) + 1
    size = np.bincount(member, minlength=count)
    times = _times_drawn(count, rng)
    sums = [
        (_times_drawn(len(rows), rng) / len(rows))
        @ np.stack([np.bincount(member, row, count) for row in rows])
        for rows in (a, b)
    ]
    group_means = ((sums[1] - sums[0]) * times).sum(axis=1) / (times @ size)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    group_low, group_high = np.percentile(group_means, [tail, 100 - tail])
    gain = _sign(figure) * group_means
    return Comparison(
        figure,
        len(difference),
        count,
        float(a.mean()),
        float(b.mean()),
        float(difference.mean()),
        float(low),
        float(high),
        float(group_low),
        float(group_high),
        float((gain > 0).mean() + 0.5 * (gain == 0).mean()),
        len(a),
        len(b),
    )


def _times_drawn(count: int, rng: np.random.Generator) -> Float64:
    """Draw `count` things with replacement; return how often each was drawn, (ROUNDS, count)."""
    return rng.multinomial(count, np.full(count, 1 / count), ROUNDS).astype(np.float64)


def to_markdown(comparisons: list[Comparison], model_a: str, model_b: str) -> str:
    """Return a table with one row per metric."""
    lines = [
        f"A = {model_a}, B = {model_b}{_seeds(comparisons)}",
        "",
        "| metric | A | B | B - A | 95 % over units | 95 % over groups | P(B better) | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {c.figure} | {c.mean_a:.4g} | {c.mean_b:.4g} | {c.difference:+.4g} "
        f"| {c.low:+.4g} … {c.high:+.4g} ({c.units}) "
        f"| {c.group_low:+.4g} … {c.group_high:+.4g} ({c.groups}) "
        f"| {c.better_share:.3f} | {c.verdict} |"
        for c in comparisons
    ]
    return "\n".join(lines) + "\n"


def _seeds(comparisons: list[Comparison]) -> str:
    """Say how many seeds were resampled, if there are several."""
    first = comparisons[0] if comparisons else None
    if first is None or (first.seeds_a, first.seeds_b) == (1, 1):
        return ""
    return f"; seeds: {first.seeds_a} of A, {first.seeds_b} of B, resampled with the groups"


def _sign(figure: str) -> int:
    """Return 1 if higher values of the metric are better, -1 if lower ones are, 0 if neither."""
    return {"higher": 1, "lower": -1, "none": 0}[find_metric(figure).direction]
