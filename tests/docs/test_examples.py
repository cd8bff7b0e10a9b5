"""Every example runs and does what its README says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import cv2
import nbformat
import numpy as np
import pytest
import rasterio
from affine import Affine
from nbclient import NotebookClient
from numpy.typing import NDArray
from PIL import Image
from rasterio.crs import CRS
from rasterio.errors import NotGeoreferencedWarning

from matchserve.types import UInt8
from tests.conftest import encoded
from tests.corner_scene import write_scene
from tests.docs.blocks import ROOT

EXAMPLES = ROOT / "examples"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


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


def test_the_notebook_finds_the_true_pose() -> None:
    notebook = nbformat.read(EXAMPLES / "pose.ipynb", as_version=4)
    assert not [c for c in notebook.cells if c.get("outputs")], "clear the outputs before a commit"
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": EXAMPLES}}
    )
    client.execute()
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    texts = "".join(o["text"] for o in outputs if o["output_type"] == "stream")
    inliers = re.search(r"(\d+) inliers", texts)
    assert inliers
    assert int(inliers[1]) > 500
    error = re.search(r"error of the direction: ([\d.]+) degrees", texts)
    assert error
    assert float(error[1]) < 2
    assert "median" in texts
    assert [o for o in outputs if "image/png" in o.get("data", {})]


def test_visual_search_ranks_the_same_place_first(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("street", "motorcycle", "box"):
        shutil.copy(EXAMPLES / "images" / name / "b.jpg", folder / f"{name}.jpg")
    query = EXAMPLES / "images" / "street" / "a.jpg"
    command = (EXAMPLES / "visual_search.py", folder, query, "--index", tmp_path / "index")
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines()][:2] == [
        "photograph",
        "street.jpg",
    ]
    assert done.stderr.count("described") == 3
    again = run(*command)
    assert again.stdout == done.stdout
    assert "described" not in again.stderr


def test_folder_to_colmap_registers_the_cameras(tmp_path: Path) -> None:
    write_scene(tmp_path / "corner", 5)
    done = run(
        EXAMPLES / "folder_to_colmap.py", tmp_path / "corner" / "images", "-o", tmp_path / "out",
        "--max-keypoints", 1000,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("5 of 5 images")
    assert done.stdout.count("centre") == 5
    assert (tmp_path / "out" / "database.db").is_file()


@pytest.mark.parametrize("more", [[], ["--verify", "similarity"]], ids=["default", "similarity"])
def test_register_geotiff_finds_the_place(tmp_path: Path, more: list[str]) -> None:
    """A turned and scaled part of an aerial photograph goes back to where it was cut out."""
    bands = np.asarray(Image.open(EXAMPLES / "images" / "aerial" / "a.jpg")).transpose(2, 0, 1)
    transform = Affine.translation(500_000, 5_200_000) @ Affine.scale(0.5, -0.5)
    profile = {"driver": "GTiff", "count": 3, "dtype": "uint8", "crs": "EPSG:32633"}
    write_tif(tmp_path / "reference.tif", bands, transform=transform, **profile)
    turn = np.array([[0.9, -0.35, 90.0], [0.35, 0.9, -110.0]])
    moved = [cv2.warpAffine(band, turn, (480, 400)) for band in bands]
    write_tif(tmp_path / "new.tif", np.stack(moved), count=3, dtype="uint8", driver="GTiff")
    out = tmp_path / "registered.tif"
    done = run(
        EXAMPLES / "register_geotiff.py",
        tmp_path / "reference.tif", tmp_path / "new.tif", "-o", out, *more,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with rasterio.open(out) as file:
        assert file.transform == transform
        assert file.crs == CRS.from_epsg(32633)
        registered = file.read()
    shown = registered.min(axis=0) > 0
    assert shown.mean() > 0.3
    gap = np.abs(registered.astype(int) - bands.astype(int))[:, shown]
    assert np.median(gap) < 6
    inverse = cv2.invertAffineTransform(turn)
    column, row = inverse @ [239.5, 199.5, 1.0]
    x, y = transform @ (column + 0.5, row + 0.5)
    found = re.search(r"image at ([\d.]+), ([\d.]+)", done.stdout)
    assert found
    assert abs(float(found[1]) - x) < 0.25  # half a pixel of 0.5 m
    assert abs(float(found[2]) - y) < 0.25


def test_register_geotiff_refuses_a_reference_without_coordinates(tmp_path: Path) -> None:
    bands = np.zeros((1, 64, 64), np.uint8)
    write_tif(tmp_path / "a.tif", bands, count=1, dtype="uint8", driver="GTiff")
    done = run(
        EXAMPLES / "register_geotiff.py", tmp_path / "a.tif", tmp_path / "a.tif", "-o",
        tmp_path / "out.tif",
    )  # fmt: skip
    assert done.returncode == 65
    assert "no coordinate reference system" in done.stderr


@pytest.mark.slow
def test_tune_writes_a_model_and_two_pictures(tmp_path: Path, photograph: UInt8) -> None:
    (tmp_path / "photos").mkdir()
    for i in range(5):
        part = photograph[40 * i : 40 * i + 260, 30 * i : 30 * i + 300]
        (tmp_path / "photos" / f"{i}.png").write_bytes(encoded(part))
    pair = [EXAMPLES / "images" / "box" / name for name in ("a.jpg", "b.jpg")]
    command: list[object] = [EXAMPLES / "tune.sh", tmp_path / "photos", tmp_path / "mine", *pair]
    command += ["--steps", 2, "--batch", 8, "--max-keypoints", 60, "--workers", 1]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", *(str(word) for word in command)],
        env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine" / "card.json").is_file()
    assert (tmp_path / "mine-before.png").is_file()
    assert (tmp_path / "mine-after.png").is_file()


def write_tif(path: Path, bands: NDArray[np.uint8], **profile: Any) -> None:
    """Write bands as TIFF; without coordinates rasterio warns."""
    _, height, width = bands.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path, "w", width=width, height=height, **profile) as file:
            file.write(bands)
