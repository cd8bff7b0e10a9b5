"""A model's detector loads only if it is what the card says, and is used where it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from matchserve import Matcher, Options
from matchserve.clock import Call, Deadline, StageClock
from matchserve.collections.store import feature_key
from matchserve.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InvalidParameter,
    MatchServeError,
    ModelCorrupt,
    ModelMismatch,
    ModelMissing,
)
from matchserve.models.card import DETECTOR_FILE, DETECTOR_GOLDEN_FILE, read_card
from matchserve.models.detection import find_keypoints
from matchserve.models.learned_detector import INPUT, OUTPUT, LearnedDetector
from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.pattern import generate, generate_pair
from matchserve.vision.decode import from_array
from matchserve.vision.keypoints import DetectOptions, detect
from tests.tiny_detector import add_detector


def options(detector: Any) -> Options:
    return Options(detect=DetectOptions(max_keypoints=200, detector=detector))


@pytest.mark.parametrize(
    ("is_default", "choice", "is_learned"),
    [
        (True, "auto", True),
        (False, "auto", False),
        (True, "dog", False),
        (False, "learned", True),
    ],
)
def test_the_request_decides_and_else_the_card(
    tiny_model: Path, is_default: bool, choice: Any, is_learned: bool
) -> None:
    descriptor = OnnxDescriptor(add_detector(tiny_model, is_default=is_default))
    image = from_array(generate((320, 240), seed=1))
    rule = DetectOptions(max_keypoints=100, detector=choice)
    found = find_keypoints(descriptor, image, rule)
    assert descriptor.detector is not None
    expected = descriptor.detector.detect(image, rule) if is_learned else detect(image, rule)
    np.testing.assert_array_equal(found.xy, expected.xy)
    assert len(found) >= 100
    features = Matcher(descriptor).features(generate((320, 240), seed=1), Options(detect=rule))
    np.testing.assert_array_equal(features.keypoints.xy, expected.xy)


def test_a_model_without_a_detector_says_so(tiny_model: Path) -> None:
    with pytest.raises(InvalidParameter, match="'tiny' has no learned detector"):
        Matcher(tiny_model).features(generate((320, 240), seed=1), options("learned"))
    with pytest.raises(InvalidParameter, match="'rootsift' has no learned detector"):
        Matcher("rootsift").features(generate((320, 240), seed=1), options("learned"))


def test_another_word_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="detector is 'orb'"):
        options("orb")


def test_two_images_match_with_learned_keypoints(tiny_model: Path) -> None:
    matcher = Matcher(add_detector(tiny_model))
    first, second, truth = generate_pair((480, 360), seed=0)
    result = matcher.match(first, second, options("auto"))
    points0, points1 = result.points()
    moved = np.column_stack([points0, np.ones(len(points0))]) @ truth.T
    error = np.linalg.norm(moved[:, :2] / moved[:, 2:] - points1, axis=1)
    assert (error < 3).sum() >= 30


def test_the_deadline_is_checked_while_keypoints_are_found(tiny_model: Path) -> None:
    matcher = Matcher(add_detector(tiny_model))
    call = Call(StageClock(Deadline(0.0)))
    with pytest.raises(DeadlineExceeded):
        matcher.features(from_array(generate((320, 240), seed=1)), options("auto"), call)


def test_features_of_another_detector_have_another_key(tiny_model: Path) -> None:
    plain = read_card(tiny_model)
    card = read_card(add_detector(tiny_model))
    assert card.detector is not None
    other = card.detector.model_copy(update={"sha256": "0" * 64})
    cards = [plain, card, card.model_copy(update={"detector": other})]
    keys = {feature_key("ab", each, options("auto")) for each in cards}
    keys.add(feature_key("ab", card, options("dog")))
    assert len(keys) == 4


def identity_graph(
    *, kind: int = TensorProto.FLOAT, names: tuple[str, str] = (INPUT, OUTPUT)
) -> onnx.ModelProto:
    """A graph that returns its input."""
    values = [helper.make_tensor_value_info(name, kind, [1, 1, "H", "W"]) for name in names]
    node = helper.make_node("Identity", [names[0]], [names[1]])
    graph = helper.make_graph([node], "same", [values[0]], [values[1]])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def resized_graph() -> onnx.ModelProto:
    """A graph that returns half of the columns."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, "H", "W"])
              for name in (INPUT, OUTPUT)]  # fmt: skip
    pool = helper.make_node("MaxPool", [INPUT], [OUTPUT], kernel_shape=[1, 2], strides=[1, 2])
    graph = helper.make_graph([pool], "half", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("lie", "error", "message"),
    [
        ({"sha256": "0" * 64}, ModelCorrupt, "detector.onnx does not have the checksum"),
        ({"golden_sha256": "0" * 64}, ModelCorrupt, "detector.npz does not have the checksum"),
        ({"golden_shift": 0.1}, ModelMismatch, "does not reproduce its golden scores"),
        ({"golden_shift": np.nan}, ModelMismatch, "does not reproduce its golden scores"),
        ({"graph": identity_graph()}, ModelMismatch, "does not reproduce its golden scores"),
        ({"graph": resized_graph()}, ModelMismatch, "for a level"),
        ({"graph": identity_graph(names=("x", OUTPUT))}, ModelMismatch, "one float input, level"),
        ({"graph": identity_graph(kind=TensorProto.DOUBLE)}, ModelMismatch, "one float input"),
    ],
)
def test_a_detector_that_contradicts_its_card_does_not_load(
    tiny_model: Path, lie: dict[str, Any], error: type[MatchServeError], message: str
) -> None:
    add_detector(tiny_model, **lie)
    with pytest.raises(error, match=message):
        OnnxDescriptor(tiny_model)


@pytest.mark.parametrize("name", [DETECTOR_FILE, DETECTOR_GOLDEN_FILE])
def test_a_missing_file_is_named(tiny_model: Path, name: str) -> None:
    (add_detector(tiny_model) / name).unlink()
    with pytest.raises(ModelMissing, match=name):
        OnnxDescriptor(tiny_model)


def test_a_damaged_golden_file_is_named(tiny_model: Path) -> None:
    from matchserve.models.model_files import sha256_hex

    add_detector(tiny_model)
    (tiny_model / DETECTOR_GOLDEN_FILE).write_bytes(b"not an archive")
    add_detector(tiny_model, golden_sha256=sha256_hex(b"not an archive"))
    (tiny_model / DETECTOR_GOLDEN_FILE).write_bytes(b"not an archive")
    with pytest.raises(ModelCorrupt, match=r"detector\.npz is not readable"):
        OnnxDescriptor(tiny_model)


def test_scores_that_are_no_numbers_are_an_error(tiny_model: Path) -> None:
    card = read_card(add_detector(tiny_model)).detector
    assert card is not None
    detector = LearnedDetector(tiny_model, card, 1)
    with pytest.raises(InferenceFailed, match="NaN"):
        detector.score(np.full((20, 20), np.nan, np.float32))


@pytest.mark.parametrize("per_octave", [0, 5])
def test_a_card_with_an_impossible_pyramid_is_refused(tiny_model: Path, per_octave: int) -> None:
    with pytest.raises(ValueError, match="per_octave"):
        add_detector(tiny_model, per_octave=per_octave)
