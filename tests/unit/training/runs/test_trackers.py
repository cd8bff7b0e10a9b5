"""Figures of a run reach a tracker; the packages are replaced by recorders of their calls."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from training.errors import RecipeError
from training.runs.report import Reporter
from training.runs.trackers import VARIABLE, open_tracker


class Recorder(ModuleType):
    """Stands for wandb and mlflow: every call is recorded."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, Any]] = []

    def init(self, **given: Any) -> "Recorder":
        self.calls.append(("init", given))
        return self

    def log(self, figures: dict[str, float], step: int) -> None:
        self.calls.append(("log", (step, figures)))

    def finish(self) -> None:
        self.calls.append(("finish", None))

    def start_run(self, **given: Any) -> SimpleNamespace:
        self.calls.append(("start", given))
        return SimpleNamespace(info=SimpleNamespace(run_id="abc"))

    def log_metrics(self, figures: dict[str, float], step: int) -> None:
        self.calls.append(("log", (step, figures)))

    def end_run(self) -> None:
        self.calls.append(("finish", None))


def report(run_dir: Path) -> None:
    with Reporter(run_dir, first=0, steps=4, is_active=True) as reporter:
        reporter.log(2, {"loss": 0.5})


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_figures_reach_the_tracker(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(name)
    monkeypatch.setitem(sys.modules, name, recorder)
    monkeypatch.setenv(VARIABLE, name)
    run_dir = tmp_path / "mine-123"
    run_dir.mkdir()
    report(run_dir)
    assert [call for call, _ in recorder.calls] == [recorder.calls[0][0], "log", "finish"]
    assert recorder.calls[1][1] == (2, {"loss": 0.5})
    report(run_dir)
    again = recorder.calls[3][1]
    if name == "wandb":
        assert again["id"] == "mine-123"
        assert again["resume"] == "allow"
    else:
        assert again == {"run_id": "abc", "run_name": None}


def test_no_tracker_unless_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert open_tracker(tmp_path) is None
    monkeypatch.setenv(VARIABLE, "wandbb")
    with pytest.raises(RecipeError, match=r"no tracker 'wandbb'.*'wandb'"):
        open_tracker(tmp_path)
    monkeypatch.setenv(VARIABLE, "mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(RecipeError, match="mlflow: not installed; run `pip install mlflow`"):
        open_tracker(tmp_path)
