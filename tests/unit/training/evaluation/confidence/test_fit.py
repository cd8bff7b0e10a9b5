"""Fitting the networks that judge matches, on generated cues with a known answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from matchserve.errors import ModelCorrupt
from matchserve.models.confidence import CONFIDENCE_FILE, read_confidence
from matchserve.types import Bool, Float32, Image, Keypoints
from matchserve.vision.agreement import nearest_matches, similarities
from matchserve.vision.confidence import FIRST_CUES, FirstCues
from matchserve.vision.refine import Refinement
from training.evaluation.confidence.fit import (
    FitOptions,
    fit_confidence,
    fit_network,
    write_confidence,
)
from training.evaluation.confidence.measure import MeasuredPair
from training.evaluation.confidence.pairs import LabelledPair
from training.evaluation.confidence.truth import unrelated_error

# Few matches make few batches, so many passes are needed.
OPTIONS = FitOptions(hidden=(8,), epochs=250, folds=3)


def _measured(scene: int, count: int = 200) -> MeasuredPair:
    """A pair whose matches are right with a probability that the first cue decides."""
    rng = np.random.default_rng(scene)
    cues = rng.normal(size=(count, len(FIRST_CUES))).astype(np.float32)
    is_right: Bool = rng.random(count) < 1 / (1 + np.exp(-3 * cues[:, 0]))
    xy: Float32 = rng.uniform(0, 300, (count, 2)).astype(np.float32)
    ones = np.ones(count, np.float32)
    keypoints = Keypoints(xy, ones, 0 * ones, ones)
    maps = similarities(keypoints, keypoints)
    refinement = Refinement(xy, maps, ones, 0 * ones, 0 * ones, ones.astype(np.bool_))
    name = f"scene{scene}"
    pair = LabelledPair((name, name), (_no_image, _no_image), (name, name), unrelated_error, "view")
    first = FirstCues(cues, (keypoints, keypoints), maps, nearest_matches((xy, xy)))
    return MeasuredPair(pair, first, refinement, is_right, is_right)


def _no_image() -> Image:
    raise AssertionError("the images are not read by the fit")


def test_network_learns_a_known_probability() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(8000, 2)).astype(np.float32)
    truth = 1 / (1 + np.exp(-2 * rows[:, 0]))
    network = fit_network(("a", "b"), rows, rng.random(8000) < truth, FitOptions(epochs=100))
    assert np.abs(network.arrays().probability(rows) - truth).mean() < 0.05


def test_evaluation_equals_a_loop_over_layers() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(500, 3)).astype(np.float32)
    network = fit_network(("a", "b", "c"), rows, rows[:, 0] > 0, OPTIONS)
    for row, value in zip(rows[:5], network.arrays().probability(rows[:5]), strict=True):
        values = (row - np.array(network.mean)) / np.array(network.scale)
        for number, layer in enumerate(network.layers):
            values = np.array(layer.weights) @ (np.maximum(values, 0) if number else values)
            values = values + np.array(layer.bias)
        assert value == pytest.approx(1 / (1 + np.exp(-values[0])), abs=1e-5)


def test_confidence_is_calibrated_on_scenes_left_out_and_comes_back_from_a_file(
    tmp_path: Path,
) -> None:
    fitted = fit_confidence([_measured(scene) for scene in range(40)], OPTIONS, "the command")
    assert fitted.held_out["expected_calibration_error"] < 0.08
    assert fitted.held_out["auc"] > 0.8
    assert sum(b.same + b.different for b in fitted.reliability) == 40 * 200
    write_confidence(fitted, tmp_path / CONFIDENCE_FILE)
    assert read_confidence(tmp_path) == fitted
    assert read_confidence(tmp_path / "elsewhere") is None


def test_damaged_networks_are_refused(tmp_path: Path) -> None:
    fitted = fit_confidence([_measured(scene, 60) for scene in range(6)], OPTIONS)
    write_confidence(fitted, tmp_path / CONFIDENCE_FILE)
    text = (tmp_path / CONFIDENCE_FILE).read_text(encoding="utf-8")
    (tmp_path / CONFIDENCE_FILE).write_text(text.replace('"distance"', '"other"'), encoding="utf-8")
    with pytest.raises(ModelCorrupt, match="cues"):
        read_confidence(tmp_path)
