from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from matchserve.pattern import generate, generate_pair
from tests.conftest import encoded
from training.cli import app
from training.retrieval.measure import average_precision


def test_average_precision() -> None:
    assert average_precision(np.array([True, False, True])) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(np.array([True, True])) == 1
    assert np.isnan(average_precision(np.array([False])))


def test_a_codebook_is_trained_and_measured(tmp_path: Path) -> None:
    photos, scenes = tmp_path / "photos", tmp_path / "scenes"
    photos.mkdir()
    for seed in range(6):
        (photos / f"{seed}.png").write_bytes(encoded(generate((200, 150), seed=seed)))
    for scene in range(3):
        (scenes / f"s{scene}").mkdir(parents=True)
        for view, image in enumerate(generate_pair((240, 180), seed=50 + scene)[:2]):
            (scenes / f"s{scene}" / f"{view}.png").write_bytes(encoded(image))
    words, store = tmp_path / "words.npz", tmp_path / "store"

    def run(*args: object) -> str:
        done = CliRunner().invoke(app, ["retrieval", *map(str, args)])
        assert done.exit_code == 0, done.output
        return done.output

    output = run(
        "train", "rootsift", "--photos", photos, "-o", words, "--store", store, "--half", 0,
        "--words", 64,
    )  # fmt: skip
    assert " words from " in output
    assert "3 photographs" in output
    table = run(
        "measure", "rootsift", "--scenes", scenes, "--words", words, "--store", store,
        "--distractors", photos, "--half", 1,
    )  # fmt: skip
    assert "9 images" in table
    row = next(line for line in table.splitlines() if "scenes" in line and "6" in line)
    assert "100.0" in row
