"""The commands, from images to a detector in a model directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from matchserve.models.card import read_card
from matchserve.models.registry import shipped_models_dir
from tests.unit.training.detector.test_crops import write_photos, write_registered
from training.cli import app
from training.errors import DataError, RecipeError


def run(*args: object) -> str:
    """Run a command that succeeds and return its output."""
    done = CliRunner().invoke(app, ["detector", *map(str, args)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_from_images_to_a_detector(tmp_path: Path) -> None:
    photos, pairs = write_photos(tmp_path / "photos", 4), write_registered(tmp_path / "warped", 2)
    crops, folder, model = tmp_path / "crops.npz", tmp_path / "run", tmp_path / "robust"
    output = run(
        "crops", "--photos", photos, "--registered", pairs, "-o", crops, "--per-megapixel", 5,
        "--per-pair", 2, "--hold-out", "warped/002", "--hold-out-every", 2, "--workers", 1,
    )  # fmt: skip
    assert "4 pairs of crops: 2 of photos, 2 of warped" in output
    command = ("train", crops, "-o", folder, "--steps", 2, "--width", 8, "--threads", 1)
    assert "final.safetensors" in run(*command)
    assert "final.safetensors" in run(*command)
    shutil.copytree(shipped_models_dir() / "robust", model)
    assert "differs from the network by" in run("export", folder, "--model", model, "--default")
    detector = read_card(model).detector
    assert detector is not None
    assert detector.is_default
    assert detector.recipe["network"]["width"] == 8


def test_wrong_options_and_files_are_named(tmp_path: Path, crops_file: Path) -> None:
    with pytest.raises(DataError, match=r"missing\.npz"):
        run("train", tmp_path / "missing.npz", "-o", tmp_path / "run")
    with pytest.raises(RecipeError, match="lr"):
        run("train", crops_file, "-o", tmp_path / "run", "--lr", "-1")
    with pytest.raises(DataError, match="no photograph and no registered pair"):
        run("crops", "-o", tmp_path / "crops.npz")
