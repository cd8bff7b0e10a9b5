"""Every example runs and does what its README says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from matchserve.types import UInt8
from tests.conftest import encoded
from tests.docs.blocks import ROOT

EXAMPLES = ROOT / "examples"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_every_file_is_in_the_readme() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    names = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__"}
    assert {name for name in names if f"]({name})" in text} == names


def test_stitch_restores_the_photograph(tmp_path: Path, photograph: UInt8) -> None:
    (tmp_path / "left.png").write_bytes(encoded(photograph[:, :340]))
    (tmp_path / "right.png").write_bytes(encoded(photograph[:, 160:]))
    joined = tmp_path / "joined.png"
    done = run(EXAMPLES / "stitch.py", tmp_path / "left.png", tmp_path / "right.png", "-o", joined)
    assert done.returncode == 0, done.stderr
    restored = np.asarray(Image.open(joined))
    height, width = restored.shape[:2]
    assert abs(width - 512) <= 2
    assert abs(height - 512) <= 2
    inside = (slice(4, -8), slice(4, -8))
    middle = cv2.resize(restored, (512, 512))[inside]
    assert float(np.median(np.abs(middle.astype(int) - photograph[inside].astype(int)))) < 8


def test_stitch_refuses_what_does_not_overlap(tmp_path: Path, photograph: UInt8) -> None:
    (tmp_path / "a.png").write_bytes(encoded(photograph))
    noise = np.random.default_rng(0).integers(0, 255, (200, 200), np.uint8)
    (tmp_path / "b.png").write_bytes(encoded(noise))
    done = run(
        EXAMPLES / "stitch.py", tmp_path / "a.png", tmp_path / "b.png", "-o", tmp_path / "c.png"
    )
    assert done.returncode == 1
    assert "do not overlap" in done.stderr
    assert not (tmp_path / "c.png").exists()


def test_find_duplicates_finds_the_pair(tmp_path: Path, photograph: UInt8) -> None:
    (tmp_path / "one.png").write_bytes(encoded(photograph))
    (tmp_path / "two.png").write_bytes(encoded(np.rot90(photograph[40:, 60:]).copy()))
    noise = np.random.default_rng(0).integers(0, 255, (300, 300), np.uint8)
    (tmp_path / "other.png").write_bytes(encoded(noise))
    done = run(EXAMPLES / "find_duplicates.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[1:] for line in done.stdout.splitlines()] == [["one.png", "two.png"]]
