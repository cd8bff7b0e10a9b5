"""From evidence to a probability: the numbers, the card, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matchserve.cli.output import same_scene_text
from matchserve.errors import ModelCorrupt
from matchserve.matcher import Matcher, Options
from matchserve.models.calibration import (
    CALIBRATION_FILE,
    FEATURES,
    Calibration,
    GeometryCalibration,
    read_calibration,
)
from matchserve.models.card import CARD_FILE, read_card, write_card
from matchserve.pattern import generate, generate_pair
from matchserve.types import Features, Keypoints, Matches, Verification, VerifyKind
from matchserve.vision.evidence import Evidence, gather
from matchserve.vision.geometry import Camera, VerifyOptions
from tests.tiny_models import write_tiny_model

ONE_KIND = {
    "intercept": -3.0,
    "coefficients": {"log_inliers": 1.0, "coverage": 2.0},
    "low": 0.01,
    "high": 0.99,
}
FIELDS: dict[str, Any] = {"prior": 0.5, "geometries": {"fundamental": ONE_KIND}}


def changed(**changes: Any) -> dict[str, Any]:
    return {**FIELDS, "geometries": {"fundamental": {**ONE_KIND, **changes}}}


def described(xy: list[tuple[float, float]], size: tuple[int, int]) -> Features:
    places = np.array(xy, np.float32).reshape(-1, 2)
    ones = np.ones(len(places), np.float32)
    return Features(Keypoints(places, ones, ones, ones), np.eye(len(places), 8), "m", size)


def evidence_of(left: Features, right: Features, inliers: list[bool]) -> Evidence:
    rows = np.arange(len(inliers))
    zeros = np.zeros(len(inliers), np.float32)
    found = Verification("homography", None, np.array(inliers, np.bool_), 0.0, log_nfa=-2.0)
    return gather(left, right, Matches(np.stack([rows, rows], axis=1), zeros, zeros), found)


def test_the_probability_is_the_logistic_function_of_the_features() -> None:
    calibration = Calibration.model_validate(FIELDS)
    found = calibration.probability("fundamental", Evidence(30, 19, 0.25, -5.0))
    assert found == pytest.approx(1 / (1 + math.exp(3.0 - math.log(20) - 0.5)))


def test_it_is_never_surer_than_its_limits() -> None:
    calibration = Calibration.model_validate(FIELDS)
    assert calibration.probability("fundamental", Evidence(10**6, 10**6, 1.0, -1e9)) == 0.99
    steep = Calibration.model_validate(changed(intercept=-1000.0))
    assert steep.probability("fundamental", Evidence(0, 0, 0.0, 0.0)) == 0.01


@pytest.mark.parametrize("kind", ["none", "pose", "homography"])
def test_a_geometry_that_was_not_fitted_has_no_probability(kind: VerifyKind) -> None:
    calibration = Calibration.model_validate(FIELDS)
    assert calibration.probability(kind, Evidence(30, 20, 0.5, -9.0)) is None


def test_no_feature_falls_with_inliers() -> None:
    for matches in (20, 2000):
        for of in FEATURES.values():
            values = [of(Evidence(matches, k, k / matches, -float(k))) for k in range(matches + 1)]
            assert values == sorted(values)
            assert all(math.isfinite(v) for v in values)


def test_coverage_is_of_cells_with_keypoints_in_the_image_where_it_is_less() -> None:
    # Four keypoints in four cells of the 8 x 8 grid on the left, in two on the right.
    left = described([(0, 0), (90, 0), (0, 70), (90, 70)], (96, 80))
    right = described([(0, 0), (1, 1), (2, 2), (95, 79)], (96, 80))
    assert evidence_of(left, right, [True, True, True, False]).coverage == 0.5
    assert evidence_of(left, right, [True, True, False, False]).coverage == 0.5
    assert evidence_of(left, right, [True, False, False, False]).coverage == 0.25
    assert evidence_of(left, right, [True] * 4).coverage == 1.0
    assert evidence_of(left, right, [False] * 4) == Evidence(4, 0, 0.0, -2.0)
    outside = described([(-0.5, -0.5), (95.5, 79.5), (99, 99), (0, 0)], (96, 80))
    assert evidence_of(outside, outside, [True] * 4).coverage == 1.0


def test_coverage_does_not_depend_on_the_size_of_the_image() -> None:
    rng = np.random.default_rng(0)
    xy = rng.uniform(0, 1, (60, 2))
    small, large = (
        described([tuple(p) for p in (xy * size - 0.5)], size) for size in ((80, 60), (4000, 3000))
    )
    inliers = [bool(v) for v in rng.random(60) < 0.3]
    assert evidence_of(small, small, inliers) == evidence_of(large, large, inliers)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        (changed(intercept=math.nan), "intercept"),
        (changed(intercept=math.inf), "intercept"),
        (changed(intercept=-1e300), "intercept"),
        (changed(coefficients={"log_inliers": 1e300}), "coefficients.log_inliers"),
        (changed(coefficients={"log_inliers": -0.1}), "coefficients.log_inliers"),
        (changed(coefficients={"log_inliers": math.inf}), "coefficients.log_inliers"),
        (changed(coefficients={"brightness": 1.0}), "coefficients.brightness"),
        (changed(low=0.0), "low"),
        (changed(high=1.0), "high"),
        (changed(low=0.9, high=0.1), "low must be below high"),
        (changed(extra=1), "extra"),
        ({**FIELDS, "prior": 1.0}, "prior"),
        ({**FIELDS, "geometries": {}}, "geometries"),
        ({**FIELDS, "geometries": {"affine": ONE_KIND}}, "affine"),
        ("high", "calibration"),
    ],
)
def test_a_card_with_a_senseless_calibration_is_refused(
    tiny_model: Path, fields: Any, where: str
) -> None:
    path = tiny_model / CARD_FILE
    card = json.loads(path.read_text())
    path.write_text(json.dumps({**card, "calibration": fields}))
    with pytest.raises(ModelCorrupt, match=where):
        read_card(tiny_model)
    with pytest.raises(ModelCorrupt, match=where):
        Matcher(tiny_model)


def test_a_calibration_comes_back_from_a_card_as_it_was(tiny_model: Path) -> None:
    calibration = Calibration.model_validate({**FIELDS, "command": "python -m training …"})
    card = read_card(tiny_model)
    assert card.calibration is None
    write_card(card.model_copy(update={"calibration": calibration}), tiny_model)
    assert read_card(tiny_model).calibration == calibration


def test_a_built_in_calibration_is_checked_too(tmp_path: Path) -> None:
    with pytest.raises(ModelCorrupt, match="not readable"):
        read_calibration(tmp_path)
    (tmp_path / CALIBRATION_FILE).write_text('{"prior": 2}')
    with pytest.raises(ModelCorrupt, match="prior"):
        read_calibration(tmp_path)


@pytest.mark.parametrize("model", ["sift", "rootsift", "compact"])
@pytest.mark.parametrize("kind", ["homography", "fundamental"])
@pytest.mark.parametrize("keypoints", [300, 2048])
def test_one_scene_is_probable_and_two_are_not(
    model: str, kind: VerifyKind, keypoints: int
) -> None:
    from matchserve.vision.keypoints import DetectOptions

    matcher = Matcher(model)
    options = Options(DetectOptions(max_keypoints=keypoints), verify=VerifyOptions(kind))
    first, second, _ = generate_pair((480, 360), seed=5)
    others = [generate((480, 360), seed=seed) for seed in (11, 12, 13)]
    same = matcher.match(first, second, options).same_scene
    different = [matcher.match(first, other, options).same_scene for other in others]
    itself = matcher.match(first, first, options).same_scene
    assert same is not None
    assert itself is not None
    # One pair in many looks like one scene by chance: the probability is calibrated, not certain.
    assert np.median(np.array(different, np.float64)) < 0.5
    assert same > 0.9
    assert same <= itself < 1


def test_more_noise_is_never_more_probable() -> None:
    """Shares of the second image replaced by another: the probability follows."""
    first, second, _ = generate_pair((480, 360), seed=5)
    other = generate((480, 360), seed=11)
    matcher = Matcher("rootsift")
    found = []
    for columns in (0, 160, 320, 480):
        mixed = second.copy()
        mixed[:, :columns] = other[:, :columns]
        value = matcher.match(first, mixed).same_scene
        assert value is not None
        found.append(value)
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.9 > 0.3 > found[-1]


def test_it_is_unknown_without_geometry_or_calibration(tmp_path: Path) -> None:
    image = generate((320, 240), seed=3)
    rootsift = Matcher("rootsift")
    assert rootsift.match(image, image, Options(verify=VerifyOptions("none"))).same_scene is None
    camera = Camera(300, 300, 160, 120)
    pose = Options(verify=VerifyOptions("pose", cameras=(camera, camera)))
    assert rootsift.match(image, image, pose).same_scene is None
    own = Matcher(write_tiny_model(tmp_path / "own"))
    assert own.match(image, image).same_scene is None
    calibrated = write_tiny_model(tmp_path / "calibrated", calibration=FIELDS)
    assert Matcher(calibrated).match(image, image).same_scene == 0.99
    # Features of another model say nothing that this model's calibration knows of.
    others = [Matcher("sift").features(image)] * 2
    assert rootsift.match_features(others[0], others[1]).same_scene is None


def test_it_is_printed_with_two_digits_and_never_as_certain() -> None:
    assert same_scene_text(0.9712, "fundamental") == "same_scene: 0.97"
    assert same_scene_text(0.9999, "fundamental") == "same_scene: 0.99"
    assert same_scene_text(0.0001, "fundamental") == "same_scene: 0.01"
    assert "no calibration for --verify pose" in same_scene_text(None, "pose")
    assert "no geometry was checked" in same_scene_text(None, "none")


def test_limits_and_coefficients_cannot_be_changed_later() -> None:
    fitted = GeometryCalibration.model_validate(ONE_KIND)
    with pytest.raises(ValueError, match="frozen"):
        fitted.low = 0.0
