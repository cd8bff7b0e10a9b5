"""`kill -9` at random moments, also inside a save: the run must end as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.training.runs.test_loop import weights_digest
from tests.unit.training.tiny_runs import tiny
from training.runs.checkpoint import Checkpoints

HERE = Path(__file__).parent
RUN = {
    "steps": 400,
    "batch": 64,
    "checkpoint_steps": 5,
    "log_every": 5,
    "validate_every": 200,
    "threads": 1,
}
SECTIONS = {
    "network": {"name": "patchify48", "width": 0.5, "dim": 32, "dropout": 0.1},
    "loss": {"name": "sdgm", "power_init": 0.0, "warmup": 0.3, "reset_powers": True},
    "sampler": {"name": "adasample", "candidates": 3},
    "data": {
        "train": [{"path": "synthetic:1:200"}],
        "validation": [{"path": "synthetic:2:40"}],
        "validation_pairs": 100,
    },
    "run": RUN,
}


def start(command: list[str], recipe: Path, out: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = ["train", str(recipe), "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, *command, *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def newest_step(run_dir: Path) -> int:
    files = Checkpoints(run_dir / "checkpoints").files()
    return int(files[0].stem.removeprefix("step-")) if files else 0


@pytest.mark.slow
def test_twenty_kills_two_of_them_inside_a_save(tmp_path: Path) -> None:
    recipe = tmp_path / "killed.toml"
    made = tiny(name="killed", **SECTIONS)
    recipe.write_text(made.to_toml())
    name = f"killed-{made.recipe_id}"
    assert start(["-m", "training"], recipe, tmp_path / "whole").wait(timeout=600) == 0

    broken = tmp_path / "broken" / name
    rng = random.Random(0)
    kills = saves = 0
    while kills < 20:
        inside = {4: "write", 11: "rename"}.get(kills)
        if inside:
            killer = [str(HERE / "killed_in_save.py"), inside, "2"]
            process = start(killer, recipe, tmp_path / "broken")
            assert process.wait(timeout=300) == -signal.SIGKILL
            saves += 1
        else:
            process = start(["-m", "training"], recipe, tmp_path / "broken")
            _kill_some_time_after(process, broken, rng)
        kills += 1
    assert saves == 2
    reached = newest_step(broken)
    assert 0 < reached < RUN["steps"], "the kills must fall into the run"
    assert start(["-m", "training"], recipe, tmp_path / "broken").wait(timeout=600) == 0
    assert not list((broken / "checkpoints").glob(".*"))
    assert weights_digest(broken) == weights_digest(tmp_path / "whole" / name)


def _kill_some_time_after(
    process: subprocess.Popen[bytes], run_dir: Path, rng: random.Random
) -> None:
    """Wait until the process has saved something (or not, one time in four), then kill it."""
    before = newest_step(run_dir)
    deadline = time.monotonic() + 120
    wants_progress = rng.random() < 0.75
    while wants_progress and newest_step(run_dir) == before and time.monotonic() < deadline:
        assert process.poll() is None, "it ended before it was killed"
        time.sleep(0.01)
    time.sleep(rng.uniform(0.0, 0.3 if wants_progress else 4.0))
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=60) == -signal.SIGKILL
