"""Benchmark results as JSON files, Markdown tables and plots."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.errors import DataError
from training.evaluation.protocol import BenchmarkResult, ModelResult, current_protocol
from training.metrics.metric import MMA, Metric, find_metric

FORMAT_VERSION = 1
_MAX_BAR_PANELS = 4
_BETTER = {"higher": "higher is better", "lower": "lower is better", "none": ""}
# The plot shows MMA at all thresholds; a table of ten columns of it hides the rest.
_NOT_IN_TABLE = frozenset(MMA.of(px) for px in (2, 4, 6, 7, 8, 9))


def to_json(result: BenchmarkResult, command: str) -> str:
    """Return the whole result as JSON, readable by `read_json`."""
    content = {
        "format_version": FORMAT_VERSION,
        "benchmark": result.benchmark,
        "command": command,
        "protocol": dict(result.protocol),
        "data_digest": result.digest,
        "models": {name: asdict(model) for name, model in result.models.items()},
    }
    return json.dumps(_to_plain(content), indent=1, allow_nan=False) + "\n"


def read_json(path: Path) -> BenchmarkResult:
    """Read a file written by `to_json`.

    Raises:
        DataError: the file is not a benchmark result.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format_version"] != FORMAT_VERSION:
            raise DataError(f"{path}: expected format_version {FORMAT_VERSION}")
        models = {name: _read_model(entry) for name, entry in content["models"].items()}
        protocol = current_protocol(content["protocol"])
        return BenchmarkResult(content["benchmark"], protocol, content["data_digest"], models)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a result of `evaluate --json`, {error}") from error


def to_markdown(result: BenchmarkResult, command: str) -> str:
    """Return a table with one row per model, and the command and the protocol below it."""
    metrics = _columns(result)
    head = "| model | " + " | ".join(metric.title for metric in metrics) + " |"
    lines = [head, "|" + "---|" * (len(metrics) + 1)]
    for model, measured in result.models.items():
        cells = [metric.format(measured.figures.get(metric.name)) for metric in metrics]
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    protocol = ", ".join(f"{key}: {value}" for key, value in result.protocol.items())
    return "\n".join([*lines, "", f"`{command}`", "", f"Protocol: {protocol}.", ""])


def plot(result: BenchmarkResult, path: Path) -> None:
    """Draw the curves of all models as PNG, or bars of the first metrics if there are none."""
    from matplotlib.figure import Figure

    curves = list(next(iter(result.models.values())).curves)
    metrics = _columns(result)[:_MAX_BAR_PANELS]
    panels = len(curves) or len(metrics)
    figure = Figure(figsize=(5 * panels, 4), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for axis, curve in zip(axes, curves, strict=False):
        axis.set_title(curve)
        for name, measured in result.models.items():
            points = measured.curves[curve]
            axis.plot(points["x"], points["y"], marker=".", label=name)
        axis.legend()
    if not curves:
        for axis, metric in zip(axes, metrics, strict=True):
            _draw_bars(axis, metric, result)
    for axis in axes:
        axis.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw_bars(axis: Any, metric: Metric, result: BenchmarkResult) -> None:
    """Draw one bar per model, the first model on top, each with its value as in the table."""
    axis.set_title(metric.title)
    axis.set_xlabel(_BETTER[metric.direction])
    for name, measured in list(result.models.items())[::-1]:
        value = measured.figures.get(metric.name, math.nan)
        length = metric.scaled(value) if math.isfinite(value) else 0.0
        axis.barh(name, length, color="tab:blue")
        axis.text(length, name, f" {metric.format(value)}", va="center", fontsize=8)
    axis.margins(x=0.15)


def _columns(result: BenchmarkResult) -> list[Metric]:
    """Return the metrics that go into a table, in order of appearance."""
    names = dict.fromkeys(name for model in result.models.values() for name in model.figures)
    metrics = [find_metric(name) for name in names if name not in _NOT_IN_TABLE]
    return [metric for metric in metrics if metric.in_table]


def _read_model(entry: Mapping[str, Any]) -> ModelResult:
    samples = {
        name: [math.inf if value is None else float(value) for value in values]
        for name, values in entry["samples"].items()
    }
    figures = {k: math.nan if v is None else float(v) for k, v in entry["figures"].items()}
    return ModelResult(
        figures,
        tuple(entry["units"]),
        tuple(entry["groups"]),
        samples,
        entry["curves"],
        entry["stamp"],
    )


def _to_plain(value: Any) -> Any:
    """Replace what JSON cannot hold: infinite and undefined numbers become null, paths text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
