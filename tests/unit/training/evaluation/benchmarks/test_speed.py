from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.training.evaluation.running import run
from training.evaluation.tables import read_json


@pytest.mark.slow
def test_speed_measures_each_model_alone(sequences: Path, tmp_path: Path) -> None:
    run(
        "evaluate", "sift", "--benchmark", "speed", "--data", str(sequences / "v_camera"),
        "--max-keypoints", "200", "--json", str(tmp_path / "r.json"),
    )  # fmt: skip
    models = read_json(tmp_path / "r.json").models
    assert list(models) == ["opencv-sift-bf-ratio", "sift", "rootsift"]
    assert models["opencv-sift-bf-ratio"].figures["pair_cpu_vs_opencv"] == 1.0
    assert models["rootsift"].figures["cpu_ms_per_1000_patches"] > 0
    assert 20 < models["rootsift"].figures["peak_rss_mb"] < 3000
