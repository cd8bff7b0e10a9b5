"""Draw the reliability diagram of a calibration; all of its numbers are in the card."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

from PIL import Image as Pillow

from matchserve.models.calibration import Calibration, GeometryCalibration, ReliabilityBin
from training.evaluation.calibration.scoring import BINS

_SAME, _DIFFERENT = "tab:green", "tab:gray"
_COLOURS = 32


def draw_reliability(calibration: Calibration, model: str, path: Path) -> Path:
    """Draw observed against predicted probability for each geometry, and the pairs of each bin."""
    from matplotlib.figure import Figure

    kinds = calibration.geometries
    figure = Figure(figsize=(4.2 * len(kinds), 5.4), layout="constrained")
    axes = figure.subplots(2, len(kinds), squeeze=False, sharex=True, height_ratios=(3, 1.3))
    figure.suptitle(f"{model}: same_scene on held-out scenes, prior {calibration.prior:g}")
    for column, (kind, fitted) in enumerate(kinds.items()):
        _draw_curve(axes[0, column], kind, fitted, calibration.prior)
        _draw_counts(axes[1, column], fitted)
    axes[0, 0].set_ylabel("share of the same scene, 95 % interval")
    axes[1, 0].set_ylabel("pairs")
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=80, format="png")
    path.parent.mkdir(parents=True, exist_ok=True)
    # A palette of a few colours looks the same and takes a third of the bytes.
    Pillow.open(buffer).convert("RGB").quantize(_COLOURS).save(path, optimize=True)
    return path


def interval(counts: ReliabilityBin, odds_of_classes: float) -> tuple[float, float]:
    """Return the 95 % confidence interval of the share of the same scene in a bin.

    `odds_of_classes` is the weight of a pair of the same scene divided by that of a pair of
    different scenes. Half a pair is added to each count, so that a bin with few pairs gets a wide
    interval instead of none.
    """
    same, different = counts.same + 0.5, counts.different + 0.5
    middle = math.log(same / different * odds_of_classes)
    reach = 1.96 * math.sqrt(1 / same + 1 / different)
    return 1 / (1 + math.exp(reach - middle)), 1 / (1 + math.exp(-reach - middle))


def _draw_curve(axis: Any, kind: str, fitted: GeometryCalibration, prior: float) -> None:
    bins = fitted.reliability
    same, different = sum(b.same for b in bins), sum(b.different for b in bins)
    odds = prior / max(same, 1) * max(different, 1) / (1 - prior)
    axis.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle="--")
    for counts in bins:
        axis.plot([counts.predicted] * 2, interval(counts, odds), color="tab:blue", linewidth=1)
    axis.plot([b.predicted for b in bins], [b.observed for b in bins], "o", color="tab:blue")
    scores = fitted.held_out
    axis.set_title(
        f"{kind}: Brier {scores['brier']:.3f}, AUC {scores['auc']:.3f}, "
        f"ECE {scores['expected_calibration_error']:.3f}",
        fontsize="medium",
    )
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axis.grid(alpha=0.3)


def _draw_counts(axis: Any, fitted: GeometryCalibration) -> None:
    """Draw bars on a logarithmic scale, since most pairs are in the first and the last bin."""
    bins = fitted.reliability
    middles = [(min(int(BINS * b.predicted), BINS - 1) + 0.5) / BINS for b in bins]
    for shift, colour, label, counts in (
        (-0.02, _SAME, "pairs of the same scene", [b.same for b in bins]),
        (0.02, _DIFFERENT, "pairs of different scenes", [b.different for b in bins]),
    ):
        bars = axis.bar([m + shift for m in middles], counts, 0.038, color=colour, label=label)
        axis.bar_label(bars, fontsize=6, rotation=90, padding=2)
    axis.set_yscale("symlog", linthresh=1)
    axis.set_ylim(0, 20 * max(max(b.same, b.different) for b in bins))
    axis.set_xlabel("same_scene")
