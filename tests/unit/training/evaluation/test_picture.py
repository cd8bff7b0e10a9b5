from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as Pillow
from skimage import data as samples

from tests.unit.training.evaluation.running import run
from training.errors import DataError
from training.evaluation.picture import is_correct, picture


def test_picture_counts_by_the_known_homography(tmp_path: Path) -> None:
    photo = tmp_path / "camera.png"
    cv2.imwrite(str(photo), samples.camera())
    out = run(
        "picture", str(photo), "-o", str(tmp_path / "drawn" / "p.png"), "--model", "rootsift",
        "--model", "sift", "--level", "easy",
    )  # fmt: skip
    counts = [int(line.split()[1]) / int(line.split()[3]) for line in out.splitlines()]
    assert len(counts) == 2
    assert all(0.5 < share <= 1 for share in counts)
    with Pillow.open(tmp_path / "drawn" / "p.png") as drawn:
        rows, columns = samples.camera().shape
        assert drawn.size == (2 * columns + 8, 2 * (rows + 30))
    assert is_correct(np.array([[10.0, 20.0]]), np.array([[12.0, 20.0]]), np.eye(3)).all()
    assert not is_correct(np.array([[10.0, 20.0]]), np.array([[13.5, 20.0]]), np.eye(3)).any()


@pytest.mark.parametrize("name", ["p", "p.xyz"])
def test_picture_refuses_a_format_before_it_reads_the_photograph(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"{name}: expected a JPEG or PNG"):
        picture(tmp_path / "none.png", ["rootsift"], tmp_path / name, level="easy", seed=0)
