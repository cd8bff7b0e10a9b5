"""The reliability diagram of the networks that judge matches, as a small PNG."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image as Pillow

from matchserve.models.confidence import Confidence

_COLOURS = 32


def draw_confidence(confidence: Confidence, model: str, path: Path) -> Path:
    """Draw the share of right matches against the confidence, and the matches of each bin."""
    from matplotlib.figure import Figure

    bins, scores = confidence.reliability, confidence.held_out
    figure = Figure(figsize=(4.2, 5.4), layout="constrained")
    curve, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.3))
    figure.suptitle(f"{model}: confidence of matches on held-out scenes", fontsize="medium")
    curve.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle="--")
    curve.plot([b.predicted for b in bins], [b.observed for b in bins], "o-", color="tab:blue")
    curve.set_title(
        f"Brier {scores['brier']:.3f}, AUC {scores['auc']:.3f}, "
        f"ECE {scores['expected_calibration_error']:.4f}",
        fontsize="medium",
    )
    curve.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="share of right matches")
    curve.grid(alpha=0.3)
    for shift, colour, label, values in (
        (-0.02, "tab:green", "right", [b.same for b in bins]),
        (0.02, "tab:gray", "wrong", [b.different for b in bins]),
    ):
        counts.bar([b.predicted + shift for b in bins], values, 0.038, color=colour, label=label)
    counts.set_yscale("symlog", linthresh=1)
    counts.set(xlabel="confidence", ylabel="matches")
    counts.legend(fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=80, format="png")
    path.parent.mkdir(parents=True, exist_ok=True)
    Pillow.open(buffer).convert("RGB").quantize(_COLOURS).save(path, optimize=True)
    return path
