from __future__ import annotations

from pathlib import Path

from tests.unit.training.evaluation.running import run
from tests.unit.training.tiny_runs import new_run
from training.evaluation.tables import read_json
from training.runs.loop import train


def test_rotation_counts_at_every_angle_and_tells_a_bad_network(
    tmp_path: Path, sequences: Path
) -> None:
    bad = train(new_run(tmp_path))
    run(
        "evaluate", f"{bad}/", "--benchmark", "rotation", "--data", str(sequences / "v_camera"),
        "--limit", "1", "--max-keypoints", "300", "--json", str(tmp_path / "r.json"),
        "--cache", str(tmp_path / "c"), "--plot", str(tmp_path / "p.png"),
    )  # fmt: skip
    models = read_json(tmp_path / "r.json").models
    result = models["rootsift"]
    curve = result.curves["correct matches by angle (degrees)"]
    assert curve["x"] == [float(a) for a in range(0, 360, 15)]
    # SIFT turns with the picture.
    assert min(curve["y"]) > 0.5 * max(curve["y"])
    (name,) = set(models) - {"sift", "rootsift"}
    for change in ("rotations", "scales"):
        correct = {model: m.figures[f"correct over {change}"] for model, m in models.items()}
        assert max(correct.values()) <= result.figures[f"ceiling over {change}"]
        # A network of six steps matches copies in the same light as well as SIFT does.
        assert correct[name] < 0.85 * correct["sift"]
