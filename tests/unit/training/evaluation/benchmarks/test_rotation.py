from __future__ import annotations

from pathlib import Path

from tests.unit.training.evaluation.running import run
from training.evaluation.tables import read_json


def test_rotation_counts_at_every_angle(tmp_path: Path, sequences: Path) -> None:
    run(
        "evaluate", "sift", "--benchmark", "rotation", "--data", str(sequences / "v_camera"),
        "--limit", "1", "--max-keypoints", "300", "--json", str(tmp_path / "r.json"),
        "--cache", str(tmp_path / "c"), "--plot", str(tmp_path / "p.png"),
    )  # fmt: skip
    result = read_json(tmp_path / "r.json").models["rootsift"]
    curve = result.curves["correct matches by angle (degrees)"]
    assert curve["x"] == [float(a) for a in range(0, 360, 15)]
    # Nothing moves at zero degrees, and SIFT turns with the picture.
    assert curve["y"][0] > 0.95 * result.figures["ceiling over rotations"]
    assert min(curve["y"]) > 60
