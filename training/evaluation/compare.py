"""Is B better than A? Paired bootstrap over the units both were measured on.

Units of one group (the pairs of a sequence, the views of a photograph) are not independent:
resampling whole groups gives the honest, wider interval; both are printed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from matchserve.types import Float64
from training.errors import DataError
from training.evaluation.protocol import BenchmarkResult

ROUNDS = 10_000
CONFIDENCE = 0.95
LOWER_IS_BETTER = ("error", "fpr95", "reprojection")
# Neither more nor less of these is better.
NEUTRAL = ("matches", "ceiling", "images")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The mean difference B - A of one figure, its interval, and how often B came out better."""

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
    """Share of group resamples in which B is better; a half means nothing."""

    @property
    def verdict(self) -> str:
        """In words: better, worse, or not distinguishable at 95 %."""
        sign = -1 if is_lower_better(self.figure) else 1
        low, high = sorted((sign * self.group_low, sign * self.group_high))
        if low > 0:
            return "B is better"
        return "B is worse" if high < 0 else "not distinguishable"


def is_lower_better(figure: str) -> bool:
    """Whether less of this figure is better."""
    return any(part in figure for part in LOWER_IS_BETTER)


def compare(
    result_a: BenchmarkResult,
    model_a: str,
    result_b: BenchmarkResult,
    model_b: str,
    *,
    seed: int = 0,
) -> list[Comparison]:
    """Compare two models on every figure both have samples of and that has a better side.

    Raises:
        DataError: other data, protocol or units: the figures would not be paired.
    """
    for name in ("benchmark", "protocol", "digest"):
        if getattr(result_a, name) != getattr(result_b, name):
            raise DataError(f"the results differ in {name}: they cannot be compared")
    for result, model in ((result_a, model_a), (result_b, model_b)):
        if model not in result.models:
            raise DataError(f"no model {model}; there are {', '.join(result.models)}")
    a, b = result_a.models[model_a], result_b.models[model_b]
    if a.units != b.units or not a.units:
        raise DataError("the results have no units in common to resample")
    found = []
    for figure in (name for name in a.samples if name not in NEUTRAL):
        left, right = np.array(a.samples[figure]), np.array(b.samples.get(figure, []))
        if left.shape == right.shape and np.isfinite(left).all() and np.isfinite(right).all():
            found.append(bootstrap(figure, left, right, a.groups, seed=seed))
    return found


def bootstrap(
    figure: str, a: Float64, b: Float64, groups: tuple[str, ...], *, seed: int = 0
) -> Comparison:
    """Resample the differences b - a, unit by unit and group by group."""
    rng = np.random.default_rng(seed)
    difference = b - a
    drawn = rng.integers(0, len(difference), (ROUNDS, len(difference)))
    means = difference[drawn].mean(axis=1)
    _, member = np.unique(np.array(groups), return_inverse=True)
    count = int(member.max()) + 1
    total = np.bincount(member, difference, count)
    size = np.bincount(member, minlength=count)
    drawn = rng.integers(0, count, (ROUNDS, count))
    group_means = total[drawn].sum(axis=1) / size[drawn].sum(axis=1)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    group_low, group_high = np.percentile(group_means, [tail, 100 - tail])
    gain = -group_means if is_lower_better(figure) else group_means
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
    )


def to_markdown(comparisons: list[Comparison], model_a: str, model_b: str) -> str:
    """A table, a row a figure."""
    lines = [
        f"A = {model_a}, B = {model_b}",
        "",
        "| figure | A | B | B - A | 95 % over units | 95 % over groups | P(B better) | |",
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
