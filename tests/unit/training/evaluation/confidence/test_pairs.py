"""Pairs with a known geometry to fit the confidence on, how they are matched, and the diagram."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as Pillow
from skimage import data as samples

from matchserve.models.confidence import Confidence, read_confidence
from matchserve.models.registry import load_descriptor, shipped_models_dir
from training.errors import DataError
from training.evaluation.confidence.diagram import draw_confidence
from training.evaluation.confidence.measure import KeypointStore, measure_pairs
from training.evaluation.confidence.pairs import LabelledPair, PairCounts, choose_pairs

COUNTS = PairCounts(views=2, registered=1, unrelated=2)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[LabelledPair]:
    base = tmp_path_factory.mktemp("pairs")
    (base / "photos").mkdir()
    for name in ("camera", "coffee"):
        small = cv2.resize(getattr(samples, name)(), (320, 240), interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(base / "photos" / f"{name}.png"), small)
    place = base / "night" / "001"
    place.mkdir(parents=True)
    grey = samples.brick()[:200, :200]
    cv2.imwrite(str(place / "1.png"), grey)
    cv2.imwrite(str(place / "2.png"), np.roll(grey, 7, axis=1))
    np.savetxt(place / "H_1_2", [[1, 0, 7], [0, 1, 0], [0, 0, 1]])
    return choose_pairs([], base, [base / "photos"], [base / "night"], COUNTS, seed=4)


def test_pairs_of_every_kind_are_chosen(pairs: list[LabelledPair]) -> None:
    kinds = [pair.kind for pair in pairs]
    assert kinds == ["view", "view", "registered", "unrelated", "unrelated"]
    for pair in pairs:
        assert (pair.scenes[0] == pair.scenes[1]) == (pair.kind != "unrelated")
        for load in pair.loaders:
            assert min(load().size) >= 200


def test_most_confident_matches_of_a_pair_are_right_and_of_unrelated_images_none(
    pairs: list[LabelledPair],
) -> None:
    measured = measure_pairs(load_descriptor("rootsift"), pairs, KeypointStore())
    for one in measured:
        if one.pair.kind == "unrelated":
            assert not one.is_right.any()
        else:
            assert one.is_right.sum() > 10
        assert len(one.is_right) == len(one.is_right_raw) == len(one.refinement.xy1)


def test_missing_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder with 1, 2 and H_1_2"):
        choose_pairs([], tmp_path, [], [tmp_path], COUNTS, 0)
    (tmp_path / "scene").mkdir()
    cv2.imwrite(str(tmp_path / "scene" / "0.png"), samples.camera())
    with pytest.raises(DataError, match="no reconstruction"):
        choose_pairs([tmp_path / "scene"], tmp_path / "work", [], [], COUNTS, 0)


def test_the_diagram_shows_the_bins(tmp_path: Path) -> None:
    shipped = read_confidence(shipped_models_dir() / "compact")
    assert isinstance(shipped, Confidence)
    path = draw_confidence(shipped, "compact", tmp_path / "plots" / "compact.png")
    with Pillow.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    blue = (pixels[..., 2] > 150) & (pixels[..., 0] < 80)
    assert blue.sum() > 100
