"""Grids, seeds and the comparison of a study's variants."""

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.training.lab.test_study import write_study
from training.cli import app
from training.errors import DataError, RecipeError
from training.lab.grid import grid_points, label
from training.lab.study import Outcome, load_study, plan
from training.lab.summary import (
    Measured,
    grid_markdown,
    grid_rows,
    half_width,
    measure_best,
    measured_markdown,
    plot_measured,
)
from training.metrics.metric import FPR95, MATCHED, Metric

GRID = """
recipe = "{recipe}"
baseline = "plain"
seeds = [0, 3]
set = ["run.log_every=5"]
[grid]
"optim.lr" = [0.1, 1e38]
[[variants]]
name = "plain"
set = ['loss.name="hardnet"']
[[variants]]
name = "soft"
set = ['loss.name="softplus"']
grid = {{}}
"""


def outcome(variant: str, point: str, *rates: float) -> list[Outcome]:
    """Runs of one point; an infinite rate is a run that diverged."""
    return [
        Outcome(
            Path(f"{variant}-{point}-{n}"), Path("run"), 9, 9, 1.0, 1.0,
            {"a": rate, "b": rate} if math.isfinite(rate) else {},
            variant, point, has_diverged=math.isinf(rate),
        )
        for n, rate in enumerate(rates)
    ]  # fmt: skip


def test_a_grid_is_every_combination() -> None:
    points = grid_points({"optim.lr": [0.1, 1.0], "loss.name": ["cdf"]})
    assert [label(p) for p in points] == ["lr0.1-namecdf", "lr1.0-namecdf"]
    assert [label(p) for p in grid_points({})] == [""]


def test_variants_take_seeds_grid_and_overrides_of_the_study(tmp_path: Path) -> None:
    runs = {run.model: run for run in plan(load_study(write_study(tmp_path, GRID)))}
    assert list(runs) == [
        "plain-lr0.1", "plain-lr0.1-seed3", "plain-lr1e38", "plain-lr1e38-seed3",
        "soft", "soft-seed3",
    ]  # fmt: skip
    assert runs["plain-lr0.1-seed3"].recipe.seed == 3
    assert runs["plain-lr0.1"].recipe.optim.lr == 0.1
    assert all(run.recipe.run.log_every == 5 for run in runs.values())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (('baseline = "plain"', 'baseline = "plane"'), "baseline: no variant 'plane'.*'plain'"),
        (("[0.1, 1e38]", "[]"), r"optim\.lr"),
        (('"optim.lr"', '"optim.rate"'), "plain: .*rate"),
        (('name = "soft"', 'name = "soft"\nstart = "plain"'), "no earlier variant 'plain'"),
    ],
)
def test_a_wrong_grid_is_refused(tmp_path: Path, change: tuple[str, str], problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        load_study(write_study(tmp_path, GRID.replace(*change)))


def test_the_best_point_has_the_lowest_mean_and_never_diverged() -> None:
    rows = grid_rows(
        [
            *outcome("a", "lr1", 0.5, 0.3),
            *outcome("a", "lr2", 0.1, math.inf),
            *outcome("a", "lr3", 0.3, 0.4),
            *outcome("b", "lr1", math.inf),
        ]
    )
    assert [(r.variant, r.point) for r in rows if r.is_best] == [("a", "lr3")]
    text = grid_markdown(rows)
    assert "| a | lr2 | 2 | diverged |  |" in text
    assert "| a | lr3 | 2 | 35.00 ± 63.53 | yes |" in text


def test_the_interval_over_seeds_is_students() -> None:
    # Of 1, 2, 3: t(2 degrees of freedom) 4.3027, standard error 1 / sqrt(3).
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert math.isnan(half_width([1.0]))


@pytest.mark.parametrize(
    ("metric", "bounds", "verdict"),
    [
        (MATCHED, (0.1, 0.2, 0.05, 0.3), "better"),
        (FPR95, (0.1, 0.2, 0.05, 0.3), "worse"),
        (MATCHED, (0.1, 0.2, -0.05, 0.3), "not distinguishable"),
        (FPR95, (-0.2, -0.1, -0.3, -0.01), "better"),
        (MATCHED, (0.1, 0.2, math.nan, math.nan), ""),
    ],
)
def test_a_verdict_needs_both_intervals(
    metric: Metric, bounds: tuple[float, ...], verdict: str
) -> None:
    assert Measured("a", "", "store", metric, (0.5,), 0.15, *bounds).verdict == verdict


def test_a_study_becomes_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_study(tmp_path, GRID)
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, ["study", str(path), "--out", "out"])
    assert ran.exit_code == 0, ran.output
    assert "plain-lr1e38: the loss is not finite" in ran.output
    assert not Path("out/models/plain-lr0.1").exists()
    store = next(Path("out/runs/stores").glob("*4*200"))
    words = ["study", str(path), "--out", "out", "--data", str(store), "--limit", "600"]
    words += ["--markdown", "tables/study.md", "--plot", "study.png"]
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0, again.output
    text = Path("tables/study.md").read_text()
    assert "| plain | lr1e38 | 2 | diverged |  |" in text
    assert text.count("| soft |") == 1 + 2
    assert text.count("minus plain") == 1
    assert Path("study.png").stat().st_size > 5000
    assert Path("out/models/plain-lr0.1-seed3").exists()


def test_a_baseline_without_a_run_is_refused(tmp_path: Path) -> None:
    rows = grid_rows(outcome("a", "lr1", 0.5))
    with pytest.raises(DataError, match="no run of the baseline 'b'"):
        measure_best(rows, "b", tmp_path, [], 100)


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    alone = [Measured("a", "", "s", MATCHED, (0.5,)), Measured("b", "", "s", MATCHED, (0.7,), 0.2)]
    text = measured_markdown(alone, "a")
    assert "| b | – | 70.00 | +20.00 |  |  |  |" in text
    plot_measured(alone, "a", tmp_path / "plot.png")
