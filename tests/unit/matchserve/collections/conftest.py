"""A generated scene of six views, and its collection, matched once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from matchserve.collections.collection import Collection
from matchserve.matcher import Options
from matchserve.vision.keypoints import DetectOptions
from tests.corner_scene import write_scene

OPTIONS = Options(detect=DetectOptions(max_keypoints=800), exif="ignore")


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of six images of a corner, with known cameras beside it."""
    folder = tmp_path_factory.mktemp("corner")
    write_scene(folder, 6)
    return folder


@pytest.fixture(scope="session")
def matched_once(scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace of the scene, matched by SIFT; do not change it."""
    workspace = tmp_path_factory.mktemp("work")
    collection = Collection(workspace, images=scene / "images", model="rootsift", options=OPTIONS)
    list(collection.match(workers=1))
    return workspace


@pytest.fixture
def photos(scene: Path, tmp_path: Path) -> Path:
    """A copy of the images that a test may change."""
    return Path(shutil.copytree(scene / "images", tmp_path / "photos"))


@pytest.fixture
def matched(photos: Path, matched_once: Path, tmp_path: Path) -> Collection:
    """A matched collection that a test may change."""
    shutil.copytree(matched_once, tmp_path / "work")
    collection = Collection(tmp_path / "work", images=photos, model="rootsift", options=OPTIONS)
    list(collection.match(workers=1))  # records the new place of the images and features
    assert collection.counts.described == 0
    return collection
