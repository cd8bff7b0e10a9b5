from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.training.tiny_runs import Stopped, new_run, stop_at
from training.errors import RecipeError, RunBusy
from training.recipes.reading import read_toml
from training.runs.lock import only_writer
from training.runs.loop import train
from training.runs.recipe import recipe_from_table
from training.runs.report import Reporter

HOLD = (
    "import sys\nfrom pathlib import Path\nfrom training.runs.lock import only_writer\n"
    "with only_writer(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
)


def test_a_run_has_one_writer(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        other.stdout.readline()
        with pytest.raises(RunBusy, match="another process"), only_writer(tmp_path):
            pass
        other.kill()  # a killed process leaves no lock behind
        other.wait()
    with only_writer(tmp_path):
        pass


def test_training_holds_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = new_run(tmp_path)
    with only_writer(run_dir), pytest.raises(RunBusy):
        train(run_dir)
    stop_at(monkeypatch, 0)
    with pytest.raises(Stopped):  # the lock is free again
        train(run_dir)


@pytest.mark.parametrize("name", ["../../x", "a/b", "", ".hidden", "a\n", "/etc/x"])
def test_a_name_cannot_lead_out_of_the_folder(name: str) -> None:
    with pytest.raises(RecipeError, match="name"):
        recipe_from_table({"name": name}, "a recipe")


def test_deep_toml_is_a_recipe_error(tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text("a = " + "[" * 100_000, encoding="utf-8")
    with pytest.raises(RecipeError, match="deep"):
        read_toml(path)


def test_a_log_of_garbage_is_replaced(tmp_path: Path) -> None:
    good = b'{"step": 3, "loss": 1.0}\n'
    bad = b"\xff\xfe\x00\n" + b"[" * 100_000 + b'\n{"step": 1e999}\n{"step": "x"}\n'
    (tmp_path / "log.jsonl").write_bytes(good + bad)
    with Reporter(tmp_path, first=5, steps=10, is_active=True):
        pass
    assert (tmp_path / "log.jsonl").read_bytes() == good


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    program = (
        "import errno, sys\nfrom training import cli\n"
        "def full(): raise OSError(errno.ENOSPC, 'No space left on device', '/x/file')\n"
        "cli.app = full\ncli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 74
    assert done.stderr == "error: /x/file: No space left on device\n"
