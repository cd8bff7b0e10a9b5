from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from tests.tiny_models import write_tiny_model
from tests.unit.training.evaluation.running import options, run
from training.errors import DataError
from training.evaluation.benchmarks import homography
from training.evaluation.protocol import load_models
from training.evaluation.tables import read_json


def test_homography_prints_a_table_and_keeps_everything(sequences: Path, tmp_path: Path) -> None:
    out = run(
        "evaluate", "sift", "--benchmark", "homography", "--data", str(sequences),
        "--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "p.png"),
        "--max-keypoints", "500", "--cache", str(tmp_path / "cache"),
    )  # fmt: skip
    assert "| rootsift |" in out
    result = read_json(tmp_path / "r.json")
    assert list(result.models) == ["sift", "rootsift"]
    figures = result.models["rootsift"].figures
    assert figures["mma@3px"] > 0.75
    assert figures["correct"] > 120
    assert 0.6 < figures["ceiling_share"] <= 1.0
    assert figures["homography_auc@5px"] > 0.8
    assert result.protocol["max_keypoints"] == 500
    assert result.models["sift"].groups == ("v_astronaut", "v_camera")
    assert (tmp_path / "p.png").is_file()
    compared = run("compare", "sift", "rootsift", "--json", str(tmp_path / "r.json"))
    assert "| correct |" in compared


def test_scores_are_computed_again_from_kept_predictions(
    sequences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = options(tmp_path, max_keypoints=300)
    models = load_models([], chosen)
    first = homography.run(models, [sequences], chosen)

    def refuse(*_: object) -> None:
        raise AssertionError("described again")

    for model in models:
        monkeypatch.setattr(type(model.descriptor), "describe", refuse)
    again = homography.run(models, [sequences], chosen)
    assert again.models["sift"].figures == first.models["sift"].figures
    with pytest.raises(AssertionError, match="described again"):
        homography.run(models, [sequences], options(tmp_path, max_keypoints=200))


def test_another_picture_gets_other_predictions(sequences: Path, tmp_path: Path) -> None:
    first = homography.read_sequences([sequences]).images.digest
    changed = tmp_path / "v_x"
    changed.mkdir()
    for file in (sequences / "v_camera").iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    before = homography.read_sequences([tmp_path]).images.digest
    picture = np.asarray(Pillow.open(changed / "2.png")).copy()
    picture[0, 0] ^= 1
    Pillow.fromarray(picture).save(changed / "2.png")
    assert homography.read_sequences([tmp_path]).images.digest != before != first


def test_damaged_sequences_are_named(sequences: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sequence"):
        homography.read_sequences([tmp_path])
    folder = tmp_path / "v_y"
    folder.mkdir()
    (folder / "H_1_2").write_text("1 0 0\n0 1 0\n")
    Pillow.fromarray(np.zeros((20, 20), np.uint8)).save(folder / "1.png")
    with pytest.raises(DataError, match="no image 2"):
        homography.read_sequences([tmp_path])
    Pillow.fromarray(np.zeros((20, 20), np.uint8)).save(folder / "2.png")
    with pytest.raises(DataError, match="expected a 3 x 3 matrix"):
        homography.read_sequences([tmp_path])


def test_a_model_of_ours_stands_beside_sift(sequences: Path, tmp_path: Path) -> None:
    tiny = write_tiny_model(tmp_path / "models" / "tiny")
    chosen = options(tmp_path, max_keypoints=200)
    result = homography.run(load_models([str(tiny)], chosen), [sequences], chosen)
    assert list(result.models) == ["sift", "rootsift", "tiny"]
    assert len(result.models["tiny"].stamp) == 64
    assert result.models["tiny"].figures["ceiling"] == result.models["sift"].figures["ceiling"]


def test_refined_points_never_exceed_the_ceiling() -> None:
    """The keypoints are 4 pixels off, and refinement has put every match right."""
    points = np.random.default_rng(0).uniform(50, 350, (20, 2))
    pair = ("a", "b")
    predictions: Any = SimpleNamespace(
        sizes=dict.fromkeys(pair, (400, 400)),
        keypoints={"a": SimpleNamespace(xy=points), "b": SimpleNamespace(xy=points + 4.0)},
    )
    found: Any = SimpleNamespace(
        points0=points, points1=points, returned=np.arange(20), confidence=None
    )
    truth: Any = SimpleNamespace(homographies={pair: np.eye(3)})
    chosen: Any = SimpleNamespace(threshold_px=3.0, seed=0)
    figures = homography._score_pair(predictions, found, pair, truth, chosen)
    assert figures["correct"] == 20
    assert figures["ceiling"] >= figures["correct"]
    assert figures["ceiling_share"] <= 1
