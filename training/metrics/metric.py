"""The registry of benchmark metrics: label, unit, and whether higher or lower is better.

Benchmarks name their values after the metrics below, so tables, plots and comparisons never guess
from a name what a value means. A value of one scene or set is named `SCENE: METRIC`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

Direction = Literal["higher", "lower", "none"]
"""Which values are better; `none` for values that only describe the data or the protocol."""

_GROUP = ": "


@dataclass(frozen=True, slots=True)
class Metric:
    """What a value means and how it is shown.

    `name` is the key in result files and cards. A `{}` in name and label stands for a parameter,
    as in `mma@{}px`. A value of unit `%` is stored as a share of 1 and shown in per cent. `digits`
    is the number of decimals shown; None shows four significant digits.
    """

    name: str
    label: str
    unit: str = ""
    direction: Direction = "higher"
    digits: int | None = 1
    in_table: bool = True

    def of(self, *parameters: object) -> str:
        """Return the name of this metric with its parameters filled in."""
        return self.name.format(*parameters)

    @property
    def title(self) -> str:
        """The label followed by the unit."""
        return f"{self.label} {self.unit}".rstrip()

    def scaled(self, value: float) -> float:
        """Return `value` in the unit shown."""
        return 100 * value if self.unit == "%" else value

    def format(self, value: float | None) -> str:
        """Return `value` as shown in a table; a dash for values that are missing or infinite."""
        if value is None or not math.isfinite(value):
            return "–"
        shown = self.scaled(value)
        return f"{shown:.4g}" if self.digits is None else f"{shown:.{self.digits}f}"


def in_group(group: str, name: str) -> str:
    """Return the name of a metric's value for one group of the data, e.g. one scene."""
    return f"{group}{_GROUP}{name}"


FPR95 = Metric("fpr95", "FPR95", "%", "lower", 2)
MATCHED = Metric("matched", "matched", "%", "higher", 2)
PATCH_SAMPLES = Metric("patch_samples", "patch", "samples", "none", 0)

MMA = Metric("mma@{}px", "MMA@{}px", "%", "higher", 2)
MATCHES = Metric("matches", "matches", "", "none")
CORRECT = Metric("correct", "correct")
CEILING = Metric("ceiling", "ceiling", "", "none")
CEILING_SHARE = Metric("ceiling_share", "share of the ceiling", "%", "higher", 2)
MATCHING_SCORE = Metric("matching_score", "matching score", "%", "higher", 2)
CORNER_ERROR = Metric("corner_error_px", "corner error", "px", "lower", 2)
HOMOGRAPHY_AUC = Metric("homography_auc@{}px", "homography AUC@{}px", "%", "higher", 2)

POSE_AUC = Metric("pose_auc@{}", "pose AUC@{}°", "%", "higher", 2)
POSE_MAA = Metric("pose_maa@{}", "pose mAA@{}°", "%", "higher", 2)
POSE_ERROR = Metric("pose_error_deg", "pose error", "degrees", "lower", 2)
PRECISION = Metric("precision", "precision", "%", "higher", 2)
INLIERS = Metric("inliers", "inliers")

POINT_RECALL = Metric("point_recall@{}px", "points within {} px", "%", "higher")
SOLVED = Metric("solved", "solved", "%", "higher")
SOLVED_AT_TILT = Metric("solved@{}deg", "solved at {}°", "%", "higher")
VIEWS_DESCRIBED = Metric("views_described", "views described", "", "none")
SOLVED_COUNT = Metric("solved_count", "solved pairs", digits=0)

CORRECT_ROTATED = Metric("correct over rotations", "correct over rotations")
LOWEST_ROTATED = Metric("lowest over rotations", "lowest over rotations")
CEILING_ROTATED = Metric("ceiling over rotations", "ceiling over rotations", "", "none")
CORRECT_SCALED = Metric("correct over scales", "correct over scales")
CEILING_SCALED = Metric("ceiling over scales", "ceiling over scales", "", "none")
# One value for each angle and scale: drawn as curves, too many for a table.
CORRECT_AT_ANGLE = Metric("correct at {} deg", "correct at {}°", in_table=False)
CORRECT_AT_SCALE = Metric("correct at {} oct", "correct at {} octaves", in_table=False)

IMAGES = Metric("images", "images", "", "none", 0)
REGISTERED = Metric("registered", "registered images", digits=0)
POINTS = Metric("points", "3D points", digits=0)
OBSERVATIONS = Metric("observations", "observations", digits=0)
TRACK_LENGTH = Metric("track_length", "mean track length", digits=2)
REPROJECTION = Metric("reprojection_px", "reprojection error", "px", "lower", 3)
CENTRE_ERROR = Metric("centre_error", "camera centre error", "scene units", "lower", 4)

VERIFICATION = Metric("verification", "verification mAP", "%", "higher", 2)
VERIFICATION_KIND = Metric("verification {} {}", "verification {} {} AP", "%", "higher", 2)
MATCHING = Metric("matching", "matching mAP", "%", "higher", 2)
MATCHING_KIND = Metric("matching {}", "matching {} mAP", "%", "higher", 2)
RETRIEVAL = Metric("retrieval", "retrieval mAP", "%", "higher", 2)
RETRIEVAL_KIND = Metric("retrieval {}", "retrieval {} mAP", "%", "higher", 2)

CPU_MS = Metric("cpu_ms_per_{}", "CPU per {}", "ms", "lower")
WALL_MS = Metric("wall_ms_per_{}", "wall time per {}", "ms", "lower")
PEAK_RSS = Metric("peak_rss_mb", "peak memory", "MB", "lower", 0)
CPU_RATIO = Metric("pair_cpu_vs_opencv", "CPU of a pair / OpenCV SIFT", "", "lower", 2)

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


@cache
def find_metric(name: str) -> Metric:
    """Return the metric of a result's value.

    A name that is not registered (a result file of another version) gives a metric of its own,
    without unit or direction: it is shown as it is and never called better or worse.
    """
    group, separator, base = name.rpartition(_GROUP)
    for metric in METRICS:
        pattern = re.escape(metric.name).replace(re.escape("{}"), r"([^:]+?)")
        match = re.fullmatch(pattern, base)
        if match:
            parameters = [text.replace("_", " ") for text in match.groups()]
            label = f"{group}{separator}{metric.label.format(*parameters)}"
            return Metric(
                name, label, metric.unit, metric.direction, metric.digits, metric.in_table
            )
    return Metric(name, name, direction="none", digits=None)
