"""The benchmark `wide` on generated pairs with a known homography."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as Pillow

from matchserve.pattern import generate_pair
from training.errors import DataError
from training.evaluation.benchmarks import wide
from training.evaluation.peer import PEER
from training.evaluation.protocol import Options, load_models


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """One pair with hand-made points, and one registered pair."""
    folder = tmp_path / "pairs"
    first, second, homography = generate_pair((320, 240), seed=3)
    for name in ("homography_hand", "time/001"):
        place = folder / name
        place.mkdir(parents=True)
        for number, image in enumerate((first, second), 1):
            Pillow.fromarray(image).save(place / f"{number}.png")
    points = np.random.default_rng(0).uniform(40, 200, (10, 2))
    moved = np.c_[points, np.ones(10)] @ homography.T
    rows = np.c_[points, moved[:, :2] / moved[:, 2:]]
    np.savetxt(folder / "homography_hand" / "points.txt", rows)
    np.savetxt(folder / "time" / "001" / "H_1_2", homography)
    return folder


@pytest.mark.parametrize("pipeline", ["raw", "default"])
def test_easy_pairs_are_solved(data: Path, tmp_path: Path, pipeline: str) -> None:
    options = Options(
        max_keypoints=500,
        threads=1,
        pipeline=pipeline,  # type: ignore[arg-type]
        cache=tmp_path / "cache",
    )
    models = [m for m in load_models([], options) if m.name == "rootsift"]
    figures = wide.run(models, [data], options).models["rootsift"].figures
    assert figures["pairs: point_recall@3px"] == 1
    assert figures["pairs: solved_count"] == 1
    assert figures["time: solved"] == 1


def test_both_pipelines_and_the_peer_are_rows_of_one_result(data: Path, tmp_path: Path) -> None:
    options = Options(max_keypoints=500, threads=1, pipeline="both", cache=tmp_path / "cache")
    models = [m for m in load_models([], options) if m.name == "rootsift"]
    both = wide.run(models, [data], options)
    assert list(both.models) == ["rootsift (raw)", "rootsift", PEER]
    for pipeline, name in (("raw", "rootsift (raw)"), ("default", "rootsift")):
        alone = replace(options, pipeline=pipeline)  # type: ignore[arg-type]
        expected = wide.run(models, [data], alone).models["rootsift"]
        assert both.models[name].figures == expected.figures
    assert both.models[PEER].figures["pairs: point_recall@3px"] == 1
    assert "default pipeline" in both.protocol["matcher"]
    assert "raw: mutual nearest neighbour" in both.protocol["matcher"]


def test_points_at_other_places_are_not_recalled(data: Path, tmp_path: Path) -> None:
    path = data / "homography_hand" / "points.txt"
    np.savetxt(path, np.loadtxt(path) + np.array([0, 0, 20, 0]))
    options = Options(max_keypoints=500, threads=1, cache=tmp_path / "cache")
    models = [m for m in load_models([], options) if m.name == "rootsift"]
    figures = wide.run(models, [data], options).models["rootsift"].figures
    assert figures["pairs: point_recall@10px"] == 0
    assert figures["pairs: solved_count"] == 0


def test_a_folder_without_pairs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"points\.txt"):
        wide.read_pairs([tmp_path])


def test_a_registered_pair_is_fitted_by_the_geometry_of_its_truth(
    data: Path, tmp_path: Path
) -> None:
    """A pair that is rotated, scaled and shifted is solved by a similarity, as its truth says."""
    first, _, _ = generate_pair((320, 240), seed=3)
    place = data / "time" / "002"
    place.mkdir()
    turn = np.array([[0.8, -0.3, 60.0], [0.3, 0.8, -20.0], [0.0, 0.0, 1.0]])
    second = cv2.warpAffine(first, turn[:2], (320, 240), borderMode=cv2.BORDER_REFLECT)
    for number, image in enumerate((first, second), 1):
        Pillow.fromarray(image).save(place / f"{number}.png")
    np.savetxt(place / "H_1_2", turn)
    pairs, _ = wide.read_pairs([data])
    assert [pair.kind for pair in pairs] == ["homography", "homography", "similarity"]
    options = Options(max_keypoints=500, threads=1, pipeline="both", cache=tmp_path / "cache")
    models = [m for m in load_models([], options) if m.name == "rootsift"]
    for name, result in wide.run(models, [data], options).models.items():
        assert result.figures["time: solved_count"] == 2, name
