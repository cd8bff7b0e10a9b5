"""Summarise a study: the grid of each variant over its seeds, and the variants on held-out data.

The best point of each grid is chosen by the validation stores of the recipe. The variants are then
compared on other stores, so that a large grid is no advantage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from training.errors import DataError
from training.evaluation.benchmarks import pairs
from training.evaluation.compare import bootstrap, seeds_of
from training.evaluation.protocol import BenchmarkResult, Options, load_models
from training.lab.grid import GridRow, best_rows
from training.lab.study import Outcome, export_model
from training.metrics.metric import FPR95, MATCHED, Metric, find_metric

CONFIDENCE = 0.95
METRICS = (FPR95, MATCHED)


def grid_rows(outcomes: Iterable[Outcome]) -> list[GridRow]:
    """Collect the runs of each point of each variant, and mark the best point of each variant."""
    collected: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        collected.setdefault((outcome.variant, outcome.point), []).append(outcome)
    rows = [
        GridRow(
            variant,
            point,
            tuple(o.model for o in runs),
            tuple(o.run for o in runs),
            tuple(fmean(o.fpr95.values()) for o in runs if o.fpr95),
            has_diverged=any(o.has_diverged for o in runs),
        )
        for (variant, point), runs in collected.items()
    ]
    best = best_rows(rows)
    return [replace(row, is_best=row is best.get(row.variant)) for row in rows]


def half_width(values: Sequence[float]) -> float:
    """Return half of the 95 % interval of the mean of a few runs, by Student's t distribution."""
    from scipy.stats import t

    if len(values) < 2:
        return math.nan
    quantile = float(t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1))
    return quantile * stdev(values) / math.sqrt(len(values))


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric of one variant on one store: mean and interval, and the difference to the baseline.

    `values` has the mean over scenes of each seed. `low` and `high` bound the difference by
    resampling seeds and scenes; `seeds_low` and `seeds_high` by Student's t over the differences of
    runs with the same seed, which is the wider one for three seeds.
    """

    variant: str
    point: str
    store: str
    metric: Metric
    values: tuple[float, ...]
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    seeds_low: float = math.nan
    seeds_high: float = math.nan

    @property
    def verdict(self) -> str:
        """Return better or worse only if both intervals exclude zero."""
        sign = 1 if self.metric.direction == "higher" else -1
        bounds = [sign * b for b in (self.low, self.high, self.seeds_low, self.seeds_high)]
        if not all(map(math.isfinite, bounds)):
            return ""
        if min(bounds) > 0:
            return "better"
        return "worse" if max(bounds) < 0 else "not distinguishable"


def measure_best(
    rows: Sequence[GridRow], baseline: str, out: Path, stores: Sequence[Path], limit: int
) -> list[Measured]:
    """Measure the best point of each variant on `stores`, and compare it with the baseline.

    Raises:
        DataError: the baseline has no finished run.
    """
    best = best_rows(rows)
    if baseline not in best:
        raise DataError(f"no run of the baseline {baseline!r} has finished")
    for row in best.values():
        for run, model in zip(row.runs, row.models, strict=True):
            export_model(run, model)
    # An absolute path is never mistaken for the name of a shipped model.
    names = [str(model.resolve()) for row in best.values() for model in row.models]
    options = Options(limit=limit, cache=out / "predictions")
    found: list[Measured] = []
    for store in stores:
        result = pairs.run(load_models(names, options), [store], options)
        for metric in METRICS:
            reference = _values(result, best[baseline], metric)
            for variant, row in best.items():
                own = _values(result, row, metric)
                one = Measured(
                    variant, row.point, store.name, metric, tuple(map(float, own.mean(axis=1)))
                )
                if variant != baseline:
                    one = _compared(one, reference, own, _groups(result, row))
                found.append(one)
    return found


def _groups(result: BenchmarkResult, row: GridRow) -> tuple[str, ...]:
    return seeds_of(result, row.models[0].name)[0].groups


def _values(result: BenchmarkResult, row: GridRow, metric: Metric) -> np.ndarray:
    return np.array([one.samples[metric.name] for one in seeds_of(result, row.models[0].name)])


def _compared(
    one: Measured, reference: np.ndarray, own: np.ndarray, groups: tuple[str, ...]
) -> Measured:
    drawn = bootstrap(one.metric.name, reference, own, groups)
    change = Measured(one.variant, one.point, one.store, one.metric, one.values)
    seeds_low = seeds_high = math.nan
    if len(reference) == len(own) > 1:
        by_seed = (own.mean(axis=1) - reference.mean(axis=1)).tolist()
        width = half_width(by_seed)
        seeds_low, seeds_high = drawn.difference - width, drawn.difference + width
    return replace(
        change,
        difference=drawn.difference,
        low=drawn.group_low,
        high=drawn.group_high,
        seeds_low=seeds_low,
        seeds_high=seeds_high,
    )


def grid_markdown(rows: Sequence[GridRow]) -> str:
    """Return a table with one row per variant and point of its grid."""
    lines = [
        "| variant | grid | seeds | validation FPR95 %, mean ± 95 % over seeds | chosen |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        shown = "diverged" if row.has_diverged else _mean_and_width(FPR95, row.fpr95)
        chosen = "yes" if row.is_best else ""
        point = row.point or "–"
        lines.append(f"| {row.variant} | {point} | {len(row.models)} | {shown} | {chosen} |")
    return "\n".join(lines) + "\n"


def measured_markdown(measured: Sequence[Measured], baseline: str) -> str:
    """Return a table with one row per variant, store and metric."""
    lines = [
        f"| store | metric | variant | grid | mean ± 95 % over seeds | minus {baseline} "
        "| 95 % over seeds and scenes | 95 % over seeds alone | verdict |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in measured:
        metric = one.metric
        difference = "" if math.isnan(one.difference) else f"{metric.scaled(one.difference):+.2f}"
        lines.append(
            f"| {one.store} | {metric.title} | {one.variant} | {one.point or '–'} "
            f"| {_mean_and_width(metric, one.values)} | {difference} "
            f"| {_interval(metric, one.low, one.high)} "
            f"| {_interval(metric, one.seeds_low, one.seeds_high)} | {one.verdict} |"
        )
    return "\n".join(lines) + "\n"


def _mean_and_width(metric: Metric, values: Sequence[float]) -> str:
    mean = f"{metric.scaled(fmean(values)):.2f}" if values else "–"
    width = half_width(values)
    return mean if math.isnan(width) else f"{mean} ± {metric.scaled(width):.2f}"


def _interval(metric: Metric, low: float, high: float) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{metric.scaled(low):+.2f} … {metric.scaled(high):+.2f}"


def plot_measured(measured: Sequence[Measured], baseline: str, path: Path) -> None:
    """Draw the difference of each variant to the baseline, with both intervals, as PNG."""
    from matplotlib.figure import Figure

    stores = list(dict.fromkeys(one.store for one in measured))
    names = list(dict.fromkeys(one.metric.name for one in measured))
    figure = Figure(figsize=(5 * len(names), 2.6 * len(stores)), layout="constrained")
    axes = figure.subplots(len(stores), len(names), squeeze=False)
    for line, store in zip(axes, stores, strict=True):
        for axis, name in zip(line, names, strict=True):
            chosen = [m for m in measured if (m.store, m.metric.name) == (store, name)]
            compared = [m for m in chosen if m.variant != baseline]
            _draw_differences(axis, find_metric(name), compared)
            axis.set_title(f"{store}: {find_metric(name).label} minus {baseline}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw_differences(axis: Any, metric: Metric, compared: Sequence[Measured]) -> None:
    for height, one in enumerate(reversed(compared)):
        for bounds, width, colour in (
            ((one.seeds_low, one.seeds_high), 1.5, "tab:grey"),
            ((one.low, one.high), 5.0, "tab:blue"),
        ):
            scaled = [metric.scaled(b) for b in bounds]
            axis.plot(scaled, [height, height], linewidth=width, color=colour)
        axis.plot(metric.scaled(one.difference), height, "o", color="black")
    axis.set_yticks(range(len(compared)), [one.variant for one in reversed(compared)])
    axis.axvline(0.0, color="black", linewidth=0.8)
    axis.set_xlabel(f"percentage points, {metric.direction} is better")
    axis.grid(alpha=0.3)
