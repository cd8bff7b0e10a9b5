import math

import pytest

from training.metrics import metric
from training.metrics.metric import METRICS, find_metric, in_group


def test_names_are_unique_and_every_metric_finds_itself() -> None:
    names = [m.name for m in METRICS]
    assert len(set(names)) == len(names) > 30
    for registered in METRICS:
        parameters = ["3"] * registered.name.count("{}")
        found = find_metric(registered.of(*parameters))
        assert found.label == registered.label.format(*parameters)
        assert (found.unit, found.direction, found.digits, found.in_table) == (
            registered.unit,
            registered.direction,
            registered.digits,
            registered.in_table,
        )


@pytest.mark.parametrize(
    ("name", "title", "direction"),
    [
        ("fpr95", "FPR95 %", "lower"),
        ("liberty: fpr95", "liberty: FPR95 %", "lower"),
        ("a: b: pose_auc@10", "a: b: pose AUC@10° %", "higher"),
        ("mma@10px", "MMA@10px %", "higher"),
        ("matches", "matches", "none"),
        ("matching view", "matching view mAP %", "higher"),
        ("verification e intra", "verification e intra AP %", "higher"),
        ("fountain: reprojection_px", "fountain: reprojection error px", "lower"),
        ("cpu_ms_per_1000_patches", "CPU per 1000 patches ms", "lower"),
    ],
)
def test_names_of_results(name: str, title: str, direction: str) -> None:
    found = find_metric(name)
    assert (found.name, found.title, found.direction) == (name, title, direction)


@pytest.mark.parametrize("name", ["matching_errors", "my fpr95", "error", "mma@px", "shared"])
def test_an_unknown_name_is_neutral_however_familiar_it_looks(name: str) -> None:
    found = find_metric(name)
    assert (found.title, found.direction) == (name, "none")
    assert found.format(0.123456) == "0.1235"


def test_values_are_shown_in_their_unit() -> None:
    assert metric.FPR95.format(0.012345) == "1.23"
    assert metric.FPR95.scaled(0.5) == 50
    assert metric.CORRECT.format(1234.56) == "1234.6"
    assert metric.POINTS.format(812.0) == "812"
    assert metric.CORRECT.format(None) == metric.CORRECT.format(math.nan) == "–"


def test_groups() -> None:
    assert in_group("liberty", metric.FPR95.name) == "liberty: fpr95"
