"""Training improves the loss, and resumes exactly where it was interrupted."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from training.detector import loop
from training.detector.crops import Crops
from training.detector.loop import DetectorRecipe, read_network, read_recipe, train
from training.errors import CheckpointError, NonFiniteLoss, RecipeError, RunBusy, RunStopped
from training.runs.checkpoint import read_tensors
from training.runs.lock import only_writer
from training.runs.report import read_log


def recipe_of(crops: Crops, **changes: Any) -> DetectorRecipe:
    """Return a recipe of few steps."""
    values: dict[str, Any] = {
        "steps": 8,
        "network": {"width": 4, "layers": 1},
        "place_weight": 0.1,
    } | changes
    return DetectorRecipe(crops_sha256=crops.sha256, **values)


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    """Return the trained weights of a run."""
    return read_tensors(run_dir / "final.safetensors").tensors


def test_more_keypoints_are_found_again(crops: Crops, tmp_path: Path) -> None:
    path = train(crops, tmp_path / "run", recipe_of(crops, steps=40), log_every=10)
    assert path == tmp_path / "run" / "final.safetensors"
    log = read_log(tmp_path / "run")
    assert [line["step"] for line in log] == [10, 20, 30, 40]
    assert log[-1]["chosen"] > log[0]["chosen"] + 0.02 > 0.1
    net, entries = read_network(tmp_path / "run")
    assert not net.training
    assert entries["made_of"] == {"textures": 6}
    assert entries["cpu_s"] > 0


def test_a_resumed_run_ends_with_the_same_weights(
    crops: Crops, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(crops)
    train(crops, tmp_path / "whole", recipe)
    step = loop._train_step

    def interrupted(state: Any, *rest: Any) -> dict[str, float]:
        figures = step(state, *rest)
        if state.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return figures

    monkeypatch.setattr(loop, "_train_step", interrupted)
    with pytest.raises(RunStopped, match="stopped at step 5 of 8 by SIGTERM"):
        train(crops, tmp_path / "broken", recipe)
    with pytest.raises(CheckpointError, match="not trained to the end"):
        read_network(tmp_path / "broken")
    monkeypatch.setattr(loop, "_train_step", step)
    train(crops, tmp_path / "broken", recipe)
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert read_log(tmp_path / "broken")[-1]["step"] == 8


def test_checkpoints_are_written_in_between(crops: Crops, tmp_path: Path) -> None:
    train(crops, tmp_path / "run", recipe_of(crops, steps=4), checkpoint_minutes=0)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-000000003.safetensors", "step-000000004.safetensors"]


def test_a_finished_run_is_left_alone(crops: Crops, tmp_path: Path) -> None:
    path = train(crops, tmp_path / "run", recipe_of(crops))
    written = path.stat().st_mtime_ns
    train(crops, tmp_path / "run", recipe_of(crops))
    assert path.stat().st_mtime_ns == written


def test_another_recipe_is_refused(crops: Crops, tmp_path: Path) -> None:
    train(crops, tmp_path / "run", recipe_of(crops))
    for changes in ({"steps": 9}, {"exact_px": 0.5}, {"network": {"width": 8, "layers": 1}}):
        with pytest.raises(RecipeError, match=f"other values of {next(iter(changes))};"):
            train(crops, tmp_path / "run", recipe_of(crops, **changes))
    others = replace(crops, sha256="0" * 64)
    with pytest.raises(RecipeError, match="other values of crops_sha256"):
        train(others, tmp_path / "run", recipe_of(others))


def test_one_process_trains_a_run(crops: Crops, tmp_path: Path) -> None:
    with only_writer(tmp_path), pytest.raises(RunBusy):
        train(crops, tmp_path, recipe_of(crops))


def test_a_damaged_recipe_is_refused(tmp_path: Path) -> None:
    for text in ("{", '{"steps": 0}', '{"unknown": 1}'):
        (tmp_path / "recipe.json").write_text(text)
        with pytest.raises(RecipeError, match="not the recipe of a detector"):
            read_recipe(tmp_path)
    with pytest.raises(RecipeError, match="nowhere"):
        read_recipe(tmp_path / "nowhere")


def test_damaged_weights_are_refused(crops: Crops, tmp_path: Path) -> None:
    path = train(crops, tmp_path, recipe_of(crops, steps=1))
    data = bytearray(path.read_bytes())
    data[-1] ^= 255
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        read_network(tmp_path)


def test_weights_of_another_network_are_refused(crops: Crops, tmp_path: Path) -> None:
    train(crops, tmp_path, recipe_of(crops, steps=1))
    other = recipe_of(crops, steps=1, network={"width": 8, "layers": 1})
    (tmp_path / "recipe.json").write_text(other.model_dump_json())
    with pytest.raises(CheckpointError, match="of another network"):
        read_network(tmp_path)


def test_unreadable_checkpoints_stop_a_run(crops: Crops, tmp_path: Path) -> None:
    train(crops, tmp_path, recipe_of(crops, steps=2))
    for path in (tmp_path / "checkpoints").glob("*.safetensors"):
        path.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="no checkpoint is readable"):
        train(crops, tmp_path, recipe_of(crops, steps=2))


def test_a_loss_that_is_not_finite_is_an_error(
    crops: Crops, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "choice_loss", lambda scores, *_: scores.sum() * np.nan)
    with pytest.raises(NonFiniteLoss, match="step 0"):
        train(crops, tmp_path, recipe_of(crops))
