"""S-6: files of weights that would run code when they are read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from training.errors import CheckpointError
from training.networks.layouts import read_published

ROOT = Path(__file__).resolve().parents[2]


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def save(content: object, path: Path) -> None:
    torch.save(content, path)  # noqa: TID251


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("where", ["alone", "state", "name"])
def test_a_file_of_weights_runs_no_code(tmp_path: Path, *, where: str, is_zip: bool) -> None:
    mark, path = tmp_path / "mark", tmp_path / "weights.pth"
    touch = Touch(mark)
    contents = {
        "alone": touch,
        "state": {"state_dict": {"a.weight": torch.ones(2), "b": touch}},
        "name": {"a.weight": torch.ones(2), "epoch": [touch]},
    }
    torch.save(contents[where], path, _use_new_zipfile_serialization=is_zip)  # noqa: TID251
    with pytest.raises(CheckpointError, match=r"weights\.pth"):
        read_published(path)
    assert not mark.exists()
    # The control: the file does run code for a reader that trusts it.
    trusting = "import sys, torch; torch.load(sys.argv[1], weights_only=False)"
    subprocess.run([sys.executable, "-c", trusting, str(path)], capture_output=True)
    assert mark.exists()


def test_nothing_reads_pickles() -> None:
    """The linter bans pickle and torch.load; the one exception accepts plain tensors only."""
    banned = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"pickle"' in banned or "pickle" in banned.partition("banned-api")[2]
    for package in ("matchserve", "training"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert "import pickle" not in text, path
            assert "allow_pickle=True" not in text, path
            for line in text.splitlines():
                assert "torch.load(" not in line or "weights_only=True" in line, path
