"""`python -m training data`, from photographs and registered pairs to stores and pictures."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as Pillow
from skimage import data as samples

from tests.unit.training.evaluation.running import run
from training.data.store.notes import read_notes
from training.data.store.reader import PatchStore
from training.errors import DataError

VIEWS = ("--levels", "easy", "--max-keypoints", "300", "--max-classes", "60", "--workers", "1")


def data(*words: str | Path) -> str:
    """Run `python -m training data` in this process; return what it prints."""
    return run("data", *map(str, words))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands") / "photos"
    folder.mkdir()
    for name in ("camera", "coffee"):
        small = cv2.resize(getattr(samples, name)(), (320, 240), interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(folder / f"{name}.png"), small)
    return folder


@pytest.fixture(scope="module")
def store(photos: Path) -> Path:
    made = photos.parent / "store"
    assert "made in" in data("photos", photos, "-o", made, "--magnification", "12", *VIEWS)
    return made


def test_a_store_of_photographs_knows_its_options(store: Path) -> None:
    opened = PatchStore.open(store)
    assert opened.scenes == ("photos/camera.png", "photos/coffee.png")
    assert opened.pixels.shape[1:] == (32, 32)
    assert read_notes(store)["levels"] == ["easy"]
    assert np.bincount(opened.class_scenes).max() <= 60


def test_split_and_merge_give_back_all_classes(store: Path, tmp_path: Path) -> None:
    parts = (tmp_path / "train", tmp_path / "held-out")
    data("split", store, *parts, "--scene", "photos/coffee.png")
    assert [PatchStore.open(part).scenes for part in parts] == [
        ("photos/camera.png",),
        ("photos/coffee.png",),
    ]
    data("merge", *parts, "-o", tmp_path / "whole")
    assert len(PatchStore.open(tmp_path / "whole")) == len(PatchStore.open(store))
    data("split", store, tmp_path / "a", tmp_path / "b", "--count", "1", "--seed", "3")
    assert len(PatchStore.open(tmp_path / "b").scenes) == 1
    with pytest.raises(DataError, match="either --scene"):
        data("split", store, tmp_path / "c", tmp_path / "d")


def test_info_names_every_scene_and_draws(store: Path, tmp_path: Path) -> None:
    printed = data("info", store, "--plot", tmp_path / "plots" / "info.png")
    assert "photos/camera.png" in printed
    assert "FPR95" in printed
    with Pillow.open(tmp_path / "plots" / "info.png") as picture:
        assert len(np.unique(np.asarray(picture.convert("L")))) > 20


def test_pairs_limits_the_store(store: Path, tmp_path: Path) -> None:
    data("pairs", store, "-o", tmp_path / "few", "--count", "40")
    assert 0 < len(PatchStore.open(tmp_path / "few")) < len(PatchStore.open(store))


def test_show_draws_the_scene_that_is_asked_for(store: Path, tmp_path: Path) -> None:
    sheets = []
    for scene in ("photos/camera.png", "photos/coffee.png"):
        path = tmp_path / scene
        data("show", store, "-o", path, "--classes", "4", "--scene", scene)
        sheets.append(path.read_bytes())
    assert sheets[0] != sheets[1]


def test_recrop_keeps_the_classes_and_changes_the_size(
    store: Path, photos: Path, tmp_path: Path
) -> None:
    data("recrop", store, photos, "-o", tmp_path / "wide", "--size", "48", "--workers", "1")
    wide = PatchStore.open(tmp_path / "wide")
    assert wide.pixels.shape[1:] == (48, 48)
    assert len(wide) == len(PatchStore.open(store))


def test_sequences_have_a_homography_for_each_view(
    photos: Path, store: Path, tmp_path: Path
) -> None:
    words = ("--levels", "easy,hard", "--min-length", "100", "--workers", "1", "--only", store)
    assert "2 sequences of 3 images" in data("sequences", photos, "-o", tmp_path / "made", *words)
    assert len(list((tmp_path / "made").rglob("H_1_*"))) == 4


def test_registered_pairs_become_a_store(tmp_path: Path) -> None:
    place = tmp_path / "night" / "001"
    place.mkdir(parents=True)
    grey = samples.camera()[100:400, 100:400]
    for number, image in ((1, grey), (2, 255 - grey)):
        cv2.imwrite(str(place / f"{number}.png"), image)
    np.savetxt(place / "H_1_2", np.eye(3))
    output = tmp_path / "store"
    words = ("--size", "16", "--max-keypoints", "300", "--max-classes", "40", "--workers", "1")
    data("modal", tmp_path / "night", "-o", output, *words)
    assert PatchStore.open(output).scenes == ("night/001",)
