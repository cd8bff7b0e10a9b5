from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.training.evaluation.running import run
from training.evaluation.tables import read_json


@pytest.mark.parametrize("pipeline", ["raw", "default"])
def test_sfm_recovers_the_camera_centres(scene: Path, tmp_path: Path, pipeline: str) -> None:
    run(
        "evaluate", "rootsift", "--benchmark", "sfm", "--data", str(scene), "--json",
        str(tmp_path / "r.json"), "--max-keypoints", "1000", "--cache", str(tmp_path / "c"),
        "--pipeline", pipeline,
    )  # fmt: skip
    figures = read_json(tmp_path / "r.json").models["rootsift"].figures
    assert figures["corner: registered"] == 4
    assert figures["corner: points"] > 150
    assert figures["corner: track_length"] > 2
    assert figures["corner: reprojection_px"] < 1.0
    assert figures["corner: centre_error"] < 0.02
