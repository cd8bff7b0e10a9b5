from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from matchserve import defaults
from matchserve.errors import InvalidParameter, ModelError, ProviderUnavailable, UnknownModel
from matchserve.models.card import CARD_FILE, ModelCard, is_model_name, read_card, write_card
from matchserve.models.handcrafted import HandcraftedDescriptor
from matchserve.models.registry import list_models, load_descriptor, shipped_models_dir
from matchserve.types import Keypoints, PatchSpec, UInt8
from matchserve.vision.decode import from_array
from matchserve.vision.keypoints import DetectOptions, detect, to_opencv
from matchserve.vision.patches import crop


@pytest.mark.parametrize("name", ["sift", "rootsift"])
def test_handcrafted_equals_opencv_at_the_same_keypoints(grey_photograph: UInt8, name: str) -> None:
    image = from_array(grey_photograph)
    found = detect(image, DetectOptions(max_keypoints=300))
    rows = HandcraftedDescriptor(name).describe(image, found)
    sift = cv2.SIFT.create(enable_precise_upscale=True)
    _, raw = sift.compute(grey_photograph, to_opencv(found, image))
    expected = np.sqrt(raw / raw.sum(axis=1, keepdims=True)) if name == "rootsift" else raw
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(rows, expected, atol=1e-6)


def test_handcrafted_descriptors_of_detected_keypoints_are_opencvs_own(
    grey_photograph: UInt8,
) -> None:
    """Our keypoints lose OpenCV's octave field; recomputing it must not change descriptors."""
    sift = cv2.SIFT.create(enable_precise_upscale=True, nfeatures=400)
    theirs, raw = sift.detectAndCompute(grey_photograph, None)
    image = from_array(grey_photograph)
    rule = DetectOptions(
        400, duplicates=True, contrast_threshold=0.04, edge_threshold=10, selection="contrast"
    )
    ours = detect(image, rule)
    rows = HandcraftedDescriptor("sift").describe(image, ours)
    places = np.array([k.pt for k in theirs])
    angles = np.radians([k.angle for k in theirs])
    same = 0
    for row, xy, angle in zip(rows, ours.xy, ours.angle, strict=True):
        gap = np.linalg.norm(places - xy, axis=1) + np.abs(angles - angle)
        j = int(gap.argmin())
        if gap[j] < 1e-3:
            same += float(row @ raw[j] / np.linalg.norm(raw[j])) > 0.97
    assert same / len(rows) > 0.95


def test_sift_of_patches_resembles_sift_of_the_image(grey_photograph: UInt8) -> None:
    image = from_array(grey_photograph)
    found = detect(image, DetectOptions(max_keypoints=200))
    spec = PatchSpec(magnification=20)
    descriptor = HandcraftedDescriptor("rootsift", spec)
    from_patches = descriptor.describe_patches(crop(image, found, spec))
    from_image = descriptor.describe(image, found)
    own = (from_patches * from_image).sum(axis=1)
    other = (from_patches * np.roll(from_image, 1, axis=0)).sum(axis=1)
    assert np.median(own) > 0.9
    assert np.mean(own > other) > 0.95
    assert descriptor.describe_patches(np.zeros((0, 1, 32, 32), np.uint8)).shape == (0, 128)
    with pytest.raises(InvalidParameter, match="patches are"):
        descriptor.describe_patches(np.zeros((2, 1, 16, 16), np.uint8))


def test_flat_patches_still_give_unit_rows() -> None:
    rows = HandcraftedDescriptor("rootsift").describe_patches(np.full((2, 1, 32, 32), 9, np.uint8))
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-6)


def test_models_are_listed_with_cards_or_with_what_is_wrong(tiny_model: Path) -> None:
    broken = tiny_model.parent / "broken"
    broken.mkdir()
    (broken / CARD_FILE).write_text("[]")
    (tiny_model.parent / "notes").mkdir()
    found = list_models(tiny_model.parent)
    assert list(found) == ["sift", "rootsift", "broken", "tiny"]
    assert isinstance(found["tiny"], ModelCard)
    assert isinstance(found["broken"], ModelError)


def test_built_in_names_and_other_peoples_cards_cannot_be_taken(tiny_model: Path) -> None:
    folder = tiny_model.parent
    shutil.copytree(tiny_model, folder / "sift")
    shutil.copytree(tiny_model, folder / "renamed")
    found = list_models(folder)
    assert isinstance(found["sift"], ModelCard)
    assert found["sift"].dim == 128
    assert isinstance(found["renamed"], ModelError)
    with pytest.raises(ModelError, match="names the model 'tiny'"):
        load_descriptor("renamed", models_dir=folder)


def test_a_missing_folder_of_models_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no folder of models"):
        list_models(tmp_path / "typo")


def test_built_ins_do_not_pretend_to_run_on_a_device() -> None:
    with pytest.raises(ProviderUnavailable, match="OpenCV"):
        load_descriptor("rootsift", provider="cuda")


def test_each_row_depends_on_its_own_keypoint_only(grey_photograph: UInt8) -> None:
    image = from_array(grey_photograph)
    found = detect(image, DetectOptions(max_keypoints=400))
    descriptor = HandcraftedDescriptor("sift")
    together = descriptor.describe(image, found)
    large = np.flatnonzero(found.sigma > 4)[:20]
    np.testing.assert_allclose(descriptor.describe(image, found[large]), together[large], atol=1e-6)


def test_keypoints_larger_than_every_octave_are_described(pattern: UInt8) -> None:
    huge = Keypoints(
        np.array([[100.0, 80.0]], np.float32),
        np.array([900.0], np.float32),
        np.zeros(1, np.float32),
        np.ones(1, np.float32),
    )
    rows = HandcraftedDescriptor("rootsift").describe(from_array(pattern), huge)
    assert rows.shape == (1, 128)


def test_sift_sees_the_working_image(grey_photograph: UInt8) -> None:
    """Under a working size, keypoints are scaled to it before they are described."""
    small = from_array(grey_photograph, max_side=256)
    found = detect(small, DetectOptions(max_keypoints=100))
    alone = from_array(small.grey)
    xy = np.asarray((found.xy + 0.5) / 2 - 0.5, np.float32)
    moved = replace(found, xy=xy, sigma=np.asarray(found.sigma / 2, np.float32))
    descriptor = HandcraftedDescriptor("sift")
    similarity = (descriptor.describe(small, found) * descriptor.describe(alone, moved)).sum(axis=1)
    assert np.median(similarity) > 0.999


def test_a_model_is_loaded_by_name_or_by_path(tiny_model: Path) -> None:
    by_name = load_descriptor("tiny", models_dir=tiny_model.parent)
    by_path = load_descriptor(str(tiny_model))
    assert by_name.card == by_path.card


@pytest.mark.parametrize(
    "name", ["nothing", "../tiny", "a/b", "TINY", "", "x" * 10_000, "tiny\0", "..", "ťiny"]
)
def test_unknown_names_are_refused(tiny_model: Path, name: str) -> None:
    with pytest.raises(UnknownModel, match="no model named") as caught:
        load_descriptor(name, models_dir=tiny_model.parent)
    assert len(caught.value.message) < 300


def test_names_follow_one_rule() -> None:
    assert is_model_name("compact-v1.2_x")
    assert not any(is_model_name(n) for n in ("Compact", "-x", "a..b", "a/b", "", "é", "a" * 65))


def test_the_shipped_models_folder_exists_and_every_model_in_it_loads() -> None:
    folder = shipped_models_dir()
    assert folder.is_dir()
    for name in list_models():
        assert load_descriptor(name).card.name == name
    assert defaults.MODEL in list_models()


def test_a_card_names_the_field_that_is_wrong(tiny_model: Path) -> None:
    path = tiny_model / CARD_FILE
    path.write_text(path.read_text().replace('"dim": 16', '"dim": "many"'))
    with pytest.raises(ModelError, match="dim"):
        read_card(tiny_model)
    with pytest.raises(ValueError, match="multiple of 8"):
        ModelCard(
            name="x", version="1", kind="binary", dim=12, patch=PatchSpec(), licence="", method=""
        )


def test_a_card_is_written_whole_or_not_at_all(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_killed(*_: object) -> None:
        raise OSError("no space")

    before = {path: path.read_bytes() for path in tiny_model.iterdir()}
    card = read_card(tiny_model).model_copy(update={"notes": "other"})
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", is_killed)
        with pytest.raises(OSError, match="no space"):
            write_card(card, tiny_model)
    assert {path: path.read_bytes() for path in tiny_model.iterdir()} == before
    write_card(card, tiny_model)
    assert read_card(tiny_model) == card
