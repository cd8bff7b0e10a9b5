"""From registered pairs to a store with two labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data as samples

from matchserve.types import Float64, Image, Keypoints, PatchSpec
from training.data.images import read_image
from training.data.modal.build import DETECTED, PROJECTED, ModalOptions, build_modal, modal_classes
from training.data.modal.pairs import find_pairs
from training.data.photos.correspondence import angle_between, transfer
from training.data.photos.similarity import similarity
from training.data.store.divide import split_store, used_labels
from training.data.store.fixed_pairs import limit_pairs
from training.data.store.reader import PatchStore
from training.data.store.recrop import recrop
from training.errors import DataError
from training.runs.recipe import Source
from training.runs.sources import open_source

OPTIONS = ModalOptions(
    spec=PatchSpec(size=16, magnification=16), max_keypoints=300, max_classes=60, margin=4.0
)


def turned(degrees: float, factor: float, shape: tuple[int, ...]) -> Float64:
    middle = (shape[1] / 2 - 0.5, shape[0] / 2 - 0.5)
    matrix = cv2.getRotationMatrix2D(middle, degrees, factor)
    return np.vstack([matrix, [0.0, 0.0, 1.0]])


def write_pair(folder: Path, name: str, degrees: float) -> None:
    """Write a photograph, and the same turned, smaller and with inverted contrast."""
    folder.mkdir(parents=True)
    grey = cv2.cvtColor(getattr(samples, name)(), cv2.COLOR_RGB2GRAY)[:300, :300]
    matrix = turned(degrees, 0.9, grey.shape)
    other = cv2.warpAffine(255 - grey, matrix[:2], (300, 300), flags=cv2.INTER_AREA)
    cv2.imwrite(str(folder / "1.png"), grey)
    cv2.imwrite(str(folder / "2.png"), other)
    np.savetxt(folder / "H_1_2", matrix)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registered")
    write_pair(folder / "night" / "001", "astronaut", 70.0)
    write_pair(folder / "night" / "002", "coffee", 10.0)
    write_pair(folder / "time" / "001", "astronaut", 0.0)
    return folder


@pytest.fixture(scope="module")
def store_path(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("stores") / "modal"
    return build_modal([pairs / "night", pairs / "time"], output, OPTIONS, workers=1)


def sides(store: PatchStore) -> tuple[Keypoints, Keypoints]:
    rows = [store.keypoints[store.class_starts + side] for side in (0, 1)]
    left, right = (Keypoints(r[:, :2], r[:, 2], r[:, 3], np.ones(len(r), np.float32)) for r in rows)
    return left, right


def test_classes_are_pairs_of_both_images_with_two_labels(store_path: Path) -> None:
    store = PatchStore.open(store_path)
    store.verify()
    assert store.scenes == ("night/001", "night/002", "time/001")
    assert store.labels == (DETECTED, PROJECTED)
    assert (store.class_sizes == 2).all()
    for scene in store.scenes:
        for label in store.labels:
            view = store.split([scene]).with_labels([label])
            assert 20 < len(view) <= 60
            named = [store.images[n] for n in store.sources[view.class_starts]]
            assert set(named) == {f"{scene}/1.png"}
            named = [store.images[n] for n in store.sources[view.class_starts + 1]]
            assert set(named) == {f"{scene}/2.png"}


def test_both_patches_show_the_same_place_and_size(pairs: Path, store_path: Path) -> None:
    store = PatchStore.open(store_path)
    for pair in find_pairs([pairs / "night"]):
        for label, most_sigmas in ((DETECTED, 1.2), (PROJECTED, 1e-3)):
            left, right = sides(store.split([pair.name]).with_labels([label]))
            moved = transfer(left, pair.homography)
            error = np.linalg.norm(moved.xy - right.xy, axis=1) / right.sigma
            assert error.max() <= 1.1 * most_sigmas
            octaves = np.abs(np.log2(moved.sigma / right.sigma))
            assert octaves.max() <= (0.71 if label == DETECTED else 1e-3)
            assert (left.angle == 0).all()
            turn = np.degrees(angle_between(moved.angle, right.angle))
            assert 5.0 < turn.max() <= 15.01


def test_inverted_patches_of_a_class_are_opposite(store_path: Path) -> None:
    store = PatchStore.open(store_path)
    found = similarity(store.pixels[store.class_starts], store.pixels[store.class_starts + 1])
    assert np.median(found) < -0.7
    assert np.abs(found).min() >= OPTIONS.min_similarity


def test_own_orientations_are_compared(pairs: Path) -> None:
    grey = read_image(pairs / "night" / "001" / "1.png").grey
    matrix = turned(70.0, 1.0, grey.shape)
    other = np.asarray(
        cv2.warpAffine(grey, matrix[:2], (300, 300), flags=cv2.INTER_CUBIC), np.uint8
    )
    images = (Image(grey, (300, 300)), Image(other, (300, 300)))
    options = replace(OPTIONS, orientation="own")
    made = modal_classes(images, matrix, options, np.random.default_rng(0))
    rows = made.keypoints[made.is_detected]
    assert len(rows) > 30
    assert len(np.unique(rows[:, 0, 3].round(2))) > 20
    moved = transfer(
        Keypoints(rows[:, 0, :2], rows[:, 0, 2], rows[:, 0, 3], np.ones(len(rows), np.float32)),
        matrix,
    )
    assert np.degrees(angle_between(moved.angle, rows[:, 1, 3])).max() <= 40.1


def test_the_same_seed_makes_the_same_store(pairs: Path, store_path: Path, tmp_path: Path) -> None:
    again = build_modal([pairs / "night", pairs / "time"], tmp_path / "b", OPTIONS, workers=1)
    assert PatchStore.open(again).digest == PatchStore.open(store_path).digest


def test_derived_stores_keep_labels(pairs: Path, store_path: Path, tmp_path: Path) -> None:
    store = PatchStore.open(store_path)
    train, held = split_store(
        store_path, tmp_path / "train", tmp_path / "held", ["night/*"], made_by="test"
    )
    assert used_labels(PatchStore.open(train)) == [DETECTED, PROJECTED]
    assert set(PatchStore.open(held).scenes) == {"night/001", "night/002"}
    again = recrop(
        train, [pairs / "night", pairs / "time"], tmp_path / "again", OPTIONS.spec, workers=1
    )
    wanted = store.split(["time/001"])
    made = PatchStore.open(again)
    np.testing.assert_array_equal(made.pixels, store.patches(_rows(wanted))[:, 0])
    np.testing.assert_array_equal(made.class_labels, store.class_labels[wanted.classes])
    fewer = PatchStore.open(
        limit_pairs(store_path, tmp_path / "few", count=100, seed=0, made_by="test")
    )
    assert sorted(used_labels(fewer)) == [DETECTED, PROJECTED]


def test_a_recipe_selects_labels_and_patterns_of_scenes(store_path: Path, tmp_path: Path) -> None:
    source = Source(path=str(store_path), scenes=("night/*",), labels=(PROJECTED,))
    view = open_source(source, tmp_path)
    assert {view.scenes[n] for n in view.class_scenes[view.classes]} == {"night/001", "night/002"}
    assert used_labels(view) == [PROJECTED]
    with pytest.raises(DataError, match="its labels are: detected, projected"):
        open_source(Source(path=str(store_path), labels=("found",)), tmp_path)


def test_folders_that_are_no_pairs_are_refused(pairs: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no folder with 1\.\*"):
        find_pairs([tmp_path])
    with pytest.raises(DataError, match="already named night/001"):
        find_pairs([pairs / "night", pairs / "night"])
    place = tmp_path / "a"
    place.mkdir()
    (place / "H_1_2").write_text("1 0 0\n0 1 0\n0 0 0\n")
    with pytest.raises(DataError, match="no image 1"):
        find_pairs([tmp_path])
    for name in ("1.png", "2.png"):
        (place / name).write_bytes(b"")
    with pytest.raises(DataError, match="invertible"):
        find_pairs([tmp_path])


def _rows(view: PatchStore) -> np.ndarray:
    return np.stack([view.class_starts, view.class_starts + 1], axis=1).ravel()
