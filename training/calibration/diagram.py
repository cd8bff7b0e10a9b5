"""The reliability diagram of a calibration, as a small PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matchserve.models.calibration import Calibration, GeometryCalibration
from training.calibration.judge import BINS

_SAME, _DIFFERENT = "tab:green", "tab:gray"


def draw_reliability(calibration: Calibration, model: str, path: Path) -> Path:
    """Draw, for each geometry, predicted against observed, and under it the pairs of each bin."""
    from matplotlib.figure import Figure

    kinds = calibration.geometries
    figure = Figure(figsize=(4.2 * len(kinds), 5.2), layout="constrained")
    axes = figure.subplots(2, len(kinds), squeeze=False, sharex=True, height_ratios=(3, 1.3))
    figure.suptitle(f"{model}: same_scene on scenes not fitted on, prior {calibration.prior:g}")
    for column, (kind, fitted) in enumerate(kinds.items()):
        _draw_curve(axes[0, column], kind, fitted)
        _draw_counts(axes[1, column], fitted)
    axes[0, 0].set_ylabel("share that shows one scene")
    axes[1, 0].set_ylabel("pairs")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    return path


def _draw_curve(axis: Any, kind: str, fitted: GeometryCalibration) -> None:
    bins = fitted.reliability
    axis.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle="--")
    axis.plot([b.predicted for b in bins], [b.observed for b in bins], marker="o")
    found = fitted.held_out
    axis.set_title(
        f"{kind}: Brier {found['brier']:.3f}, AUC {found['auc']:.3f}, "
        f"ECE {found['expected_calibration_error']:.3f}",
        fontsize="medium",
    )
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axis.grid(alpha=0.3)


def _draw_counts(axis: Any, fitted: GeometryCalibration) -> None:
    """Bars on a logarithmic scale, for most pairs are in the first and the last bin."""
    for shift, colour, label, counts in (
        (-0.02, _SAME, "one scene", [b.same for b in fitted.reliability]),
        (0.02, _DIFFERENT, "different ones", [b.different for b in fitted.reliability]),
    ):
        places = [min(int(BINS * b.predicted), BINS - 1) / BINS + 0.5 / BINS + shift
                  for b in fitted.reliability]  # fmt: skip
        bars = axis.bar(places, counts, 0.038, color=colour, label=label)
        axis.bar_label(bars, fontsize=6, rotation=90, padding=2)
    axis.set_yscale("symlog", linthresh=1)
    axis.set_ylim(0, 20 * max(max(b.same, b.different) for b in fitted.reliability))
    axis.set_xlabel("same_scene")
    axis.legend(fontsize="x-small", loc="upper center")
