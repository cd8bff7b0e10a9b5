"""Results as JSON, as a Markdown table and as a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.errors import DataError
from training.evaluation.protocol import BenchmarkResult, ModelResult

FORMAT_VERSION = 1
# Shares are shown in per cent.
_SHARES = (
    "mma@",
    "_auc@",
    "fpr95",
    "matched",
    "share",
    "precision",
    "verification",
    "matching",
    "retrieval",
)


def to_json(result: BenchmarkResult, command: str) -> str:
    """The whole result, readable by `read_json`."""
    content = {
        "format_version": FORMAT_VERSION,
        "benchmark": result.benchmark,
        "command": command,
        "protocol": dict(result.protocol),
        "data_digest": result.digest,
        "models": {name: asdict(model) for name, model in result.models.items()},
    }
    return json.dumps(_finite(content), indent=1, allow_nan=False) + "\n"


def read_json(path: Path) -> BenchmarkResult:
    """Read what `to_json` wrote.

    Raises:
        DataError: it is not a result file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format_version"] != FORMAT_VERSION:
            raise DataError(f"{path}: expected format_version {FORMAT_VERSION}")
        models = {name: _model(held) for name, held in content["models"].items()}
        return BenchmarkResult(
            content["benchmark"], content["protocol"], content["data_digest"], models
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a result of `evaluate --json`, {error}") from error


def to_markdown(result: BenchmarkResult, command: str, figures: tuple[str, ...] = ()) -> str:
    """A table, a row a model, with the command and protocol below it."""
    names = figures or _columns(result)
    head = "| model | " + " | ".join(_title(name) for name in names) + " |"
    lines = [head, "|" + "---|" * (len(names) + 1)]
    for model, held in result.models.items():
        cells = [_cell(name, held.figures.get(name)) for name in names]
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    said = ", ".join(f"{key}: {value}" for key, value in result.protocol.items())
    return "\n".join([*lines, "", f"`{command}`", "", f"Protocol: {said}.", ""])


def plot(result: BenchmarkResult, path: Path) -> None:
    """Draw the curves of all models, or bars of the first figures where there are none."""
    from matplotlib.figure import Figure

    labels = list(next(iter(result.models.values())).curves)
    bars = _columns(result)[:4]
    panels = labels or bars
    figure = Figure(figsize=(5 * len(panels), 4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, label in zip(axes, panels, strict=True):
        if labels:
            axis.set_title(label)
            for name, held in result.models.items():
                axis.plot(held.curves[label]["x"], held.curves[label]["y"], marker=".", label=name)
            axis.legend()
        else:
            axis.set_title(_title(label))
            _bars(axis, label, {n: h.figures.get(label, 0.0) for n, h in result.models.items()})
        axis.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _bars(axis: Any, figure: str, values: Mapping[str, float]) -> None:
    """A bar a model, from top to bottom, with its value as in the table."""
    for name in list(values)[::-1]:
        shown = values[name] * (100 if _is_share(figure) else 1)
        axis.barh(name, shown, color="tab:blue")
        axis.text(shown, name, f" {_cell(figure, values[name])}", va="center", fontsize=8)
    axis.margins(x=0.15)


def _columns(result: BenchmarkResult) -> tuple[str, ...]:
    """Figures of all models in order of appearance, less those that make a curve already."""
    names: dict[str, None] = {}
    for held in result.models.values():
        names.update(dict.fromkeys(held.figures))
    skipped = ("mma@2", "mma@4", "mma@6", "mma@7", "mma@8", "mma@9", "correct at ")
    return tuple(name for name in names if not name.startswith(skipped))


def _title(name: str) -> str:
    return name.replace("_", " ") + (" %" if _is_share(name) else "")


def _is_share(name: str) -> bool:
    return any(part in name for part in _SHARES)


def _cell(name: str, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    if _is_share(name):
        return f"{100 * value:.2f}"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _model(held: Mapping[str, Any]) -> ModelResult:
    samples = {
        name: [float("inf") if value is None else float(value) for value in values]
        for name, values in held["samples"].items()
    }
    figures = {k: float("nan") if v is None else float(v) for k, v in held["figures"].items()}
    return ModelResult(
        figures,
        tuple(held["units"]),
        tuple(held["groups"]),
        samples,
        held["curves"],
        held["stamp"],
    )


def _finite(value: Any) -> Any:
    """JSON has no infinity: an error that has no end becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(held) for held in value]
    return str(value) if isinstance(value, Path) else value
