"""`python -m training calibrate` from generated scenes to a card that `match` reads."""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data as samples
from typer.testing import CliRunner

from matchserve.matcher import Matcher
from matchserve.models import handcrafted
from matchserve.models.card import read_card
from matchserve.pattern import generate, generate_pair
from tests.corner_scene import write_scene
from tests.tiny_models import write_tiny_model
from training.cli import app
from training.data.scenes.build import find_scenes
from training.data.scenes.sfm import SfmOptions, reconstruct
from training.errors import DataError
from training.evaluation.calibration import pairs as pairs_module
from training.evaluation.calibration.pairs import (
    PairOptions,
    Setting,
    choose_pairs,
    shared_points,
)

SETTINGS = (Setting(200, None), Setting(400, 0.85))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder with one scene, and the workspace of its reconstruction."""
    base = tmp_path_factory.mktemp("calibration")
    write_scene(base / "made", 5)
    (base / "scenes").mkdir()
    (base / "made" / "images").rename(base / "scenes" / "corner")
    ((images),) = find_scenes([base / "scenes"]).values()
    reconstruct(images, base / "work" / "corner", SfmOptions(max_keypoints=1200))
    return base / "scenes", base / "work"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for seed in range(9):
        cv2.imwrite(str(folder / f"{seed}.png"), generate((400, 300), seed=20 + seed))
    cv2.imwrite(str(folder / "camera.png"), samples.camera())
    return folder


def test_points_seen_in_both_are_counted(scenes: tuple[Path, Path]) -> None:
    shared = shared_points(scenes[1] / "corner")
    assert len(shared) == 10
    neighbours = shared["corner/0001.png", "corner/0002.png"]
    assert neighbours > shared["corner/0000.png", "corner/0004.png"]
    assert neighbours > 100
    with pytest.raises(DataError, match="no reconstruction"):
        shared_points(scenes[1] / "nowhere")


def test_pairs_are_what_they_are_said_to_be(scenes: tuple[Path, Path], photos: Path) -> None:
    options = PairOptions(same=12, settings=SETTINGS)
    found = choose_pairs([scenes[0]], scenes[1], [photos], options)
    same = [pair for pair in found.pairs if pair.is_same]
    different = [pair for pair in found.pairs if not pair.is_same]
    assert len(same) == 12
    assert sum(pair.scenes[0] == "corner" for pair in same) == 8
    assert 5 * len(same) >= len(different) > 3 * len(same)
    assert {pair.setting for pair in same} == {pair.setting for pair in different} == set(SETTINGS)
    asked = [(frozenset(pair.images), pair.setting) for pair in found.pairs]
    assert len(set(asked)) == len(asked)
    for pair in found.pairs:
        for image, scene in zip(pair.images, pair.scenes, strict=True):
            assert image.startswith(scene)
            assert image in found.images
    # No image is described for the pairs of two scenes alone.
    known = {name for pair in same for name in pair.images}
    assert {name for pair in different for name in pair.images} <= known
    again = choose_pairs([scenes[0]], scenes[1], [photos], options)
    assert again.pairs == found.pairs


def test_images_that_share_too_little_are_in_no_pair(
    scenes: tuple[Path, Path], photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"corner/{n:04d}.png" for n in range(5)]
    shared = {(a, b): 5 for i, a in enumerate(names) for b in names[i + 1 :]}
    shared[names[0], names[3]] = 400
    monkeypatch.setattr(pairs_module, "shared_points", lambda _: shared)
    found = choose_pairs([scenes[0]], scenes[1], [photos], PairOptions(same=9, settings=SETTINGS))
    inside = [pair.images for pair in found.pairs if pair.scenes == ("corner", "corner")]
    assert inside == [(names[0], names[3])]


def test_scenes_that_do_not_fit_are_refused(scenes: tuple[Path, Path], photos: Path) -> None:
    with pytest.raises(DataError, match="not a directory"):
        choose_pairs([photos / "none"], scenes[1], [], PairOptions())
    with pytest.raises(DataError, match="no reconstruction"):
        choose_pairs([photos], scenes[1], [], PairOptions())
    with pytest.raises(DataError, match="two scenes"):
        choose_pairs([scenes[0]], scenes[1], [], PairOptions(same=4))


def test_the_command_writes_card_and_diagram(
    scenes: tuple[Path, Path], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    monkeypatch.setattr(handcrafted, "BUILT_IN", tmp_path / "built_in")
    words = [
        "calibrate", "rootsift", str(model), "--scenes", str(scenes[0]), "--workspace",
        str(scenes[1]), "--photos", str(photos), "--pairs", "20", "--keypoints", "300",
        "--plot", str(tmp_path / "plots"), "--write",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["training", *words])
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "rootsift" in done.output
    assert (tmp_path / "plots" / "reliability-rootsift.png").is_file()
    assert (tmp_path / "built_in" / "rootsift" / "calibration.json").is_file()
    assert 2000 < (model / "reliability.png").stat().st_size < 100_000
    made = read_card(model).calibration
    assert made is not None
    assert made.command == (
        "python -m training calibrate tiny --scenes scenes --workspace work --photos "
        f"{photos.name} --pairs 20 --keypoints 300"
    )
    assert made.protocol["same"] == 17  # all ten of the scene, and seven of the photographs
    assert set(made.geometries) == {"homography", "fundamental"}
    assert read_card(model).model_copy(update={"calibration": None}) == read_card(
        write_tiny_model(tmp_path / "other" / "tiny")
    )
    first, second, _ = generate_pair((400, 300), seed=2)
    sure = Matcher(model).match(first, first).same_scene
    assert sure is not None
    assert sure > 0.5
    assert np.isfinite(sure)
    assert Matcher(model).match(second, first).same_scene is not None
