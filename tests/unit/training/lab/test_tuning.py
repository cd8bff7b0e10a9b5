"""`training tune`: from a folder of photographs to the better of two models, told honestly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from skimage import data as samples
from typer.testing import CliRunner, Result

from matchserve.models.card import read_card
from matchserve.models.registry import load_descriptor, shipped_models_dir
from tests.conftest import encoded
from training.cli import app
from training.data.store.divide import used_scenes
from training.data.store.reader import PatchStore
from training.errors import DataError, ExportRefused, TrainingError
from training.evaluation.protocol import BenchmarkResult, ModelResult
from training.lab.tuning import steps
from training.lab.tuning.verdict import judge

TINY = ("--steps", "2", "--batch", "8", "--max-keypoints", "60", "--workers", "1")
NAMES = ("astronaut", "coffee", "rocket", "chelsea", "camera")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune") / "photos"
    folder.mkdir()
    for name in NAMES:
        small = cv2.resize(getattr(samples, name)(), (256, 192), interpolation=cv2.INTER_AREA)
        (folder / f"{name}.png").write_bytes(encoded(np.asarray(small, np.uint8)))
    return folder


@pytest.fixture(scope="module")
def tuned(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """One run of the command."""
    out = tmp_path_factory.mktemp("out") / "mine"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matchserve.memory.keep_freed", lambda: None)
        result = CliRunner().invoke(app, ["tune", str(photos), "-o", str(out), *TINY])
    assert result.exit_code == 0, (result.output, result.exception)
    return out, result


def call(*args: object) -> TrainingError:
    result = CliRunner().invoke(app, ["tune", *map(str, args), *TINY])
    assert isinstance(result.exception, TrainingError), result.output
    return result.exception


def test_the_command_writes_a_model_with_table_and_picture(tuned: tuple[Path, Result]) -> None:
    out, result = tuned
    descriptor = load_descriptor(f"{out}/")
    assert descriptor.card.name == "mine"
    assert descriptor.card.calibration is not None
    assert descriptor.card.confidence is not None
    assert (out / "tuning.png").stat().st_size > 1000
    table = (out / "tuning.txt").read_text()
    assert "2 photographs that were not trained on" in table
    assert table in result.stdout
    assert f"--model {out}" in result.stdout


def test_two_steps_do_not_help_and_the_command_says_so(tuned: tuple[Path, Result]) -> None:
    out, result = tuned
    assert "Tuning did not help" in result.stdout
    assert "2 photographs are too few to tell" in result.stdout
    assert f"{out} is compact, unchanged" in result.stdout
    assert read_card(out).sha256 == read_card(shipped_models_dir() / "compact").sha256
    tuned_card = read_card(Path(f"{out}-work") / "tuned")
    assert tuned_card.sha256 != read_card(out).sha256
    assert "not fitted again" in tuned_card.notes


def test_no_photograph_is_on_both_sides(tuned: tuple[Path, Result]) -> None:
    work = steps.Workspace(Path(f"{tuned[0]}-work"))
    trained, apart = (
        set(used_scenes(PatchStore.open(store)))
        for store in (work.train_store, work.held_out_store)
    )
    assert apart == set(json.loads((work.path / "plan.json").read_text())["held_out"])
    assert not trained & apart
    assert len(trained | apart) == len(NAMES)


def test_the_same_command_does_nothing_twice(
    tuned: tuple[Path, Result], photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: Any, **_options: Any) -> None:
        raise AssertionError("done before")

    for name in ("build_photos", "train", "export", "write_sequences"):
        monkeypatch.setattr(steps, name, refuse)
    monkeypatch.setattr("training.evaluation.benchmarks.homography.run", refuse)
    out = tuned[0].with_name("mine-again")
    work = f"{tuned[0]}-work"
    again = CliRunner().invoke(
        app, ["tune", str(photos), "-o", str(out), "--workspace", work, *TINY]
    )
    assert again.exit_code == 0, (again.output, again.exception)
    assert load_descriptor(f"{out}/").card.name == "mine-again"


def test_other_photographs_need_another_workspace(tuned: tuple[Path, Result], photos: Path) -> None:
    work = f"{tuned[0]}-work"
    out = tuned[0].with_name("third")
    error = call(photos, "-o", out, "--workspace", work, "--seed", 7)
    assert isinstance(error, DataError)
    assert "--workspace" in error.message


def test_refusals_come_before_any_work(tuned: tuple[Path, Result], tmp_path: Path) -> None:
    assert isinstance(call(tmp_path, "-o", tuned[0]), ExportRefused)
    few = tmp_path / "few"
    few.mkdir()
    (few / "one.png").write_bytes(encoded(np.zeros((64, 64), np.uint8)))
    assert "has 1 photographs; at least 5" in call(few, "-o", tmp_path / "x").message
    for start in ("binary", "accurate", "compact-int8"):
        error = call(few, "-o", tmp_path / "x", "--start", start)
        assert start in error.message
    assert "no shipped model 'nope'" in call(few, "-o", tmp_path / "x", "--start", "nope").message


def measured(correct: list[float], mma: float) -> ModelResult:
    units = tuple(f"{i // 5}/{i % 5}" for i in range(len(correct)))
    samples = {"correct": correct, "mma@1px": [mma] * len(correct), "mma@3px": [mma] * len(correct)}
    return ModelResult({}, units, tuple(u.split("/")[0] for u in units), samples)


@pytest.mark.parametrize(
    ("gain", "mma", "photographs", "is_better", "words"),
    [
        (8.0, 0.9, 10, True, "Tuning helped: +8.0 %"),
        (-8.0, 0.9, 10, False, "finds fewer correct matches"),
        (0.0, 0.9, 10, False, "within what chance explains"),
        (8.0, 0.7, 10, False, "fewer of its matches are right"),
        (8.0, 0.9, 4, False, "4 photographs are too few to tell"),
    ],
)
def test_the_verdict(
    gain: float, mma: float, photographs: int, is_better: bool, words: str
) -> None:
    noise = np.random.default_rng(0).normal(0, 3, 5 * photographs)
    before = measured([100.0] * len(noise), 0.9)
    after = measured([float(100 + gain + e - noise.mean()) for e in noise], mma)
    result = BenchmarkResult("homography", {}, "", {"before": before, "after": after})
    verdict = judge(result)
    assert verdict.is_better is is_better
    assert words in verdict.text("compact", "mine")
    assert verdict.groups == photographs
    assert max(len(line) for line in verdict.table().splitlines()) <= 80
