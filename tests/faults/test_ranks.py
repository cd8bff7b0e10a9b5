"""D-21: one of two training processes is killed; the others restart from the checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.unit.training.runs.test_loop import weights_digest
from tests.unit.training.tiny_runs import tiny
from training.runs.checkpoint import Checkpoints

SECTIONS = {
    "run": {"steps": 120, "batch": 32, "checkpoint_steps": 10, "validate_every": 60},
}


def start(recipe: Path, out: Path, restarts: int) -> subprocess.Popen[bytes]:
    words = ["--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    training = ["-m", "training", "train", str(recipe), "--out", str(out)]
    with out.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *words, *training],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=log,
        )


@pytest.mark.nightly
def test_a_killed_rank_is_restarted(tmp_path: Path) -> None:
    made = tiny(name="ranks", **SECTIONS)
    recipe = tmp_path / "ranks.toml"
    recipe.write_text(made.to_toml(), encoding="utf-8")
    name = f"ranks-{made.recipe_id}"
    assert start(recipe, tmp_path / "whole", 0).wait(900) == 0
    process = start(recipe, tmp_path / "broken", 3)
    checkpoints = Checkpoints(tmp_path / "broken" / name / "checkpoints")
    end = time.monotonic() + 600
    while not checkpoints.files():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    ranks = psutil.Process(process.pid).children()
    assert len(ranks) == 2
    ranks[1].send_signal(signal.SIGKILL)
    code = process.wait(900)
    assert code == 0, (tmp_path / "broken.log").read_text(errors="replace")[-4000:]
    assert weights_digest(tmp_path / "broken" / name) == weights_digest(tmp_path / "whole" / name)
