from __future__ import annotations

from pathlib import Path

from tests.unit.training.evaluation.running import options
from training.evaluation.benchmarks import pose
from training.evaluation.protocol import load_models


def test_pose_finds_the_known_cameras(scene: Path, tmp_path: Path) -> None:
    chosen = options(tmp_path, max_keypoints=800)
    result = pose.run(load_models([], chosen), [scene], chosen)
    figures = result.models["rootsift"].figures
    assert figures["pose_auc@10"] > 0.8
    assert figures["precision"] > 0.5
    assert len(result.models["rootsift"].units) == 6
    limited = pose.run(load_models([], chosen), [scene], options(tmp_path, limit=2))
    assert len(limited.models["sift"].units) == 2
