from pathlib import Path

import pytest

from tests.unit.training.tiny_runs import new_run
from training.runs import loop
from training.runs.checkpoint import read_tensors
from training.runs.kept import RATE_ENTRY
from training.runs.loop import train


def test_the_best_weights_and_those_of_every_k_steps_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = iter([0.5, 0.2, 0.3])
    monkeypatch.setattr(loop, "validate", lambda *_: {"a": next(rates), "b": 0.1})
    run = {"steps": 6, "validate_every": 2, "keep_every": 2}
    run_dir = train(new_run(tmp_path, run=run))
    best = read_tensors(run_dir / "best.safetensors")
    assert best.entries["step"] == 4
    assert best.entries[RATE_ENTRY] == pytest.approx(0.15)
    kept = sorted((run_dir / "kept").iterdir())
    assert [path.name for path in kept] == [f"step-00000000{n}.safetensors" for n in (2, 4, 6)]
    same = read_tensors(kept[1]).tensors
    assert all((same[key] == value).all() for key, value in best.tensors.items())


def test_without_validation_there_is_no_best(tmp_path: Path) -> None:
    run_dir = train(new_run(tmp_path, data={"validation": []}, run={"steps": 2}))
    assert not (run_dir / "best.safetensors").exists()
    assert not (run_dir / "kept").exists()
