"""From photographs to a store, and from a store to others."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as Pillow
from skimage import data as samples

from matchserve.types import PatchSpec
from training.data.photos.build import PhotoOptions, build_photos, photo_classes
from training.data.photos.similarity import similarity
from training.data.store.difficulty import sift_fpr95
from training.data.store.divide import (
    merge_stores,
    random_scenes,
    split_store,
    used_scenes,
)
from training.data.store.notes import read_notes
from training.data.store.pairs import sample_pairs
from training.data.store.reader import PatchStore
from training.data.store.recrop import recrop
from training.data.store.report import report_store, scene_table
from training.data.store.sheet import contact_sheet, write_sheet
from training.errors import DataError

OPTIONS = PhotoOptions(
    spec=PatchSpec(magnification=16),
    levels=("easy", "hard", "night"),
    max_keypoints=500,
    max_classes=120,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for name in ("camera", "astronaut", "coffee"):
        picture = getattr(samples, name)()
        small = cv2.resize(picture, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(folder / f"{name}.png"), small)
    return folder


@pytest.fixture(scope="module")
def store_path(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_photos([folder], tmp_path_factory.mktemp("stores") / "a", OPTIONS, workers=1)


def test_each_photograph_is_a_scene_with_classes_of_two_and_more(store_path: Path) -> None:
    store = PatchStore.open(store_path)
    store.verify()
    assert len(store.scenes) == 3
    assert all(scene.endswith(".png") for scene in store.scenes)
    assert store.class_sizes.min() >= 2
    assert store.class_sizes.max() <= 4
    assert (np.bincount(store.class_scenes) <= 120).all()
    assert len(store) > 200
    assert np.isfinite(store.keypoints).all()


def test_patches_of_a_class_look_alike_and_others_do_not(store_path: Path) -> None:
    store = PatchStore.open(store_path)
    pairs = sample_pairs(store, 1000)
    found = similarity(store.pixels[pairs.left], store.pixels[pairs.right])
    assert np.median(found[pairs.is_match]) > 0.7
    assert np.median(found[~pairs.is_match]) < 0.3


def test_similarity_ignores_light_and_is_zero_for_flat_patches() -> None:
    rng = np.random.default_rng(0)
    patch = cv2.GaussianBlur(rng.integers(0, 200, (32, 32)).astype(np.uint8), (0, 0), 3)
    darker = (patch * 0.4 + 20).astype(np.uint8)
    flat = np.full((32, 32), 77, np.uint8)
    found = similarity(np.stack([patch, patch, patch]), np.stack([darker, 255 - patch, flat]))
    assert found[0] > 0.98
    assert found[1] < -0.98
    assert abs(found[2]) < 1e-6
    assert similarity(np.zeros((0, 32, 32), np.uint8), np.zeros((0, 32, 32), np.uint8)).shape == (
        0,
    )


def test_recropping_with_the_same_spec_gives_the_same_bytes(
    store_path: Path, folder: Path, tmp_path: Path
) -> None:
    again = recrop(store_path, [folder], tmp_path / "b", OPTIONS.spec, workers=1)
    assert (again / "patches.npy").read_bytes() == (store_path / "patches.npy").read_bytes()
    assert (again / "keypoints.npy").read_bytes() == (store_path / "keypoints.npy").read_bytes()
    wider = recrop(
        store_path, [folder], tmp_path / "c", PatchSpec(size=24, magnification=20), workers=1
    )
    store = PatchStore.open(wider)
    assert store.spec == PatchSpec(size=24, magnification=20)
    assert np.array_equal(store.offsets, PatchStore.open(store_path).offsets)


def test_recropping_names_an_image_that_is_not_there(store_path: Path, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "other.png"), samples.camera())
    with pytest.raises(DataError, match=r"astronaut\.png is not in the given folders"):
        recrop(store_path, [tmp_path], tmp_path / "d", OPTIONS.spec)


def test_two_processes_write_what_one_does(store_path: Path, folder: Path, tmp_path: Path) -> None:
    two = build_photos([folder], tmp_path / "two", OPTIONS, workers=2)
    assert PatchStore.open(two).digest == PatchStore.open(store_path).digest


def test_a_photograph_without_texture_gives_no_class() -> None:
    made = photo_classes(np.full((100, 120), 90, np.uint8), "blank", OPTIONS)
    assert len(made.sizes) == 0
    assert made.patches.shape == (0, 32, 32)


def test_a_split_divides_scenes_and_a_merge_joins_them(store_path: Path, tmp_path: Path) -> None:
    store = PatchStore.open(store_path)
    held = random_scenes(store, 1, seed=4)
    train, validation = split_store(
        store_path, tmp_path / "train", tmp_path / "val", held, made_by="test"
    )
    one, other = PatchStore.open(train), PatchStore.open(validation)
    assert used_scenes(other) == held
    assert not set(used_scenes(one)) & set(held)
    assert len(one) + len(other) == len(store)
    assert read_notes(train) == read_notes(store_path)
    joined = PatchStore.open(merge_stores([train, validation], tmp_path / "m", made_by="test"))
    assert joined.patch_count == store.patch_count
    own = store.split(held)
    again = joined.split(held)
    first = store.patches(np.arange(own.class_starts[0], own.class_starts[0] + 2))
    assert np.array_equal(first, joined.patches(again.class_starts[0] + np.arange(2)))
    with pytest.raises(DataError, match="is also in"):
        merge_stores([train, train], tmp_path / "n", made_by="test")


def test_a_split_needs_both_sides(store_path: Path, tmp_path: Path) -> None:
    store = PatchStore.open(store_path)
    with pytest.raises(DataError, match="cannot hold out 3"):
        random_scenes(store, 3)
    with pytest.raises(DataError, match="on each side"):
        split_store(store_path, tmp_path / "a", tmp_path / "b", used_scenes(store), made_by="")


def test_the_report_measures_difficulty_by_level(store_path: Path) -> None:
    report = report_store(store_path)
    assert report.scenes == 3
    assert sum(report.class_sizes.values()) == report.classes
    assert set(report.sift_fpr95_by_level) == {"easy", "hard", "night"}
    assert report.sift_fpr95_by_level["easy"] < report.sift_fpr95_by_level["hard"] < 0.7
    assert f"{report.classes} classes" in str(report)
    assert "camera.png" in scene_table(store_path)


def test_fpr95_of_a_store_of_copies_is_zero(store_path: Path, tmp_path: Path) -> None:
    from training.data.store.writer import StoreWriter

    store = PatchStore.open(store_path)
    with StoreWriter(tmp_path / "copies", store.spec, made_by="test") as writer:
        for start in store.class_starts[:50]:
            patch = store.pixels[start]
            writer.add_class(np.stack([patch, patch]), scene="s", images=["a", "b"])
    assert sift_fpr95(PatchStore.open(tmp_path / "copies"), 2000) < 0.03


def test_sampled_pairs_tell_the_truth(store_path: Path) -> None:
    store = PatchStore.open(store_path)
    owner = np.repeat(np.arange(len(store)), store.class_sizes)
    pairs = sample_pairs(store, 2001, seed=5)
    assert len(pairs.left) == 2001
    assert np.array_equal(owner[pairs.left] == owner[pairs.right], pairs.is_match)
    assert (pairs.left != pairs.right).all()
    scene = store.class_scenes[owner]
    same = (scene[pairs.left] == scene[pairs.right])[~pairs.is_match].mean()
    assert 0.5 < same < 0.8  # half by choice, and a third of the rest by chance


def test_the_contact_sheet_shows_the_patches(store_path: Path, tmp_path: Path) -> None:
    store = PatchStore.open(store_path)
    sheet = contact_sheet(store, classes=10, columns=2)
    write_sheet(tmp_path / "sheet.png", sheet)
    read = np.asarray(Pillow.open(tmp_path / "sheet.png"))
    assert np.array_equal(read, sheet)
    chosen = np.sort(np.random.default_rng(0).permutation(len(store))[:10])[0]
    patch = store.pixels[store.class_starts[chosen]]
    drawn = cv2.resize(patch, (48, 48), interpolation=cv2.INTER_NEAREST)
    assert np.array_equal(sheet[:48, 44:92, 0], drawn)


def test_a_damaged_photograph_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff not a jpeg")
    with pytest.raises(DataError, match=r"bad\.jpg"):
        build_photos([tmp_path], tmp_path / "s", OPTIONS, workers=1)
    assert not (tmp_path / "s").exists()
    with pytest.raises(DataError, match="not a directory"):
        build_photos([tmp_path / "none"], tmp_path / "s", OPTIONS, workers=1)
