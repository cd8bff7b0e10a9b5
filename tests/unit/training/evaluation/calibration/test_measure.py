"""Calibrations see the matches that the service finds."""

from __future__ import annotations

import numpy as np
import pytest

from matchserve.matcher import Matcher, Options
from matchserve.models.handcrafted import HandcraftedDescriptor
from matchserve.models.registry import load_descriptor
from matchserve.options import RAW_OPTIONS
from matchserve.pattern import generate, generate_pair
from matchserve.vision.decode import from_array
from matchserve.vision.keypoints import DetectOptions, detect
from training.evaluation.calibration.measure import Described, find_keypoints, match_described
from training.evaluation.calibration.pairs import ImagePair, PairSet, Setting, all_settings


@pytest.mark.parametrize("is_same", [True, False])
def test_matches_are_those_of_the_matcher(*, is_same: bool) -> None:
    first, second, _ = generate_pair((400, 300), seed=3)
    images = [from_array(grey) for grey in (first, second if is_same else generate((400, 300)))]
    descriptor = load_descriptor("rootsift")
    one, other = (
        Described.of(descriptor, image, detect(image, DetectOptions(max_keypoints=300)))
        for image in images
    )
    _, judged = match_described(descriptor, one, other, Setting(300, None))
    options = Options(DetectOptions(max_keypoints=300))
    expected = Matcher(descriptor).match(images[0], images[1], options)
    np.testing.assert_array_equal(judged.matches.pairs[judged.returned], expected.matches.pairs)
    assert expected.refined is not None
    points1 = judged.points1(other.oriented.keypoints)[judged.returned]
    np.testing.assert_allclose(points1, expected.refined.xy1, atol=1e-3)


def test_raw_matches_are_not_judged() -> None:
    first, second, _ = generate_pair((400, 300), seed=3)
    images = [from_array(grey) for grey in (first, second)]
    descriptor = load_descriptor("rootsift")
    keypoints = [detect(image, DetectOptions(max_keypoints=300)) for image in images]
    one, other = (
        Described.of(descriptor, image, found)
        for image, found in zip(images, keypoints, strict=True)
    )
    _, judged = match_described(descriptor, one, other, Setting(300, None, is_raw=True))
    expected = Matcher(descriptor).match_features(one.oriented, other.oriented, RAW_OPTIONS)
    np.testing.assert_array_equal(judged.matches.pairs, expected.matches.pairs)
    assert judged.refined is None


def test_keypoints_are_those_of_a_request_for_as_many() -> None:
    first, second, _ = generate_pair((400, 300), seed=3)
    images = {"a": from_array(first), "b": from_array(second)}
    pairs = [ImagePair(("a", "b"), ("s", "s"), Setting(count, None)) for count in (60, 300)]
    loaders = {"a": lambda: images["a"], "b": lambda: images["b"]}
    found = find_keypoints(PairSet(loaders, pairs, frozenset("s")), HandcraftedDescriptor("sift"))
    assert sorted(found) == [("a", 60), ("a", 300), ("b", 60), ("b", 300)]
    for (name, count), keypoints in found.items():
        expected = detect(images[name], DetectOptions(max_keypoints=count))
        np.testing.assert_array_equal(keypoints.xy, expected.xy)
    # Otherwise the test would not tell the two apart.
    assert not np.array_equal(found["a", 60].xy, found["a", 300].xy[:60])


def test_settings_cover_the_default_pipeline_and_raw_matches() -> None:
    settings = all_settings((512,), (0.85,))
    assert settings == (Setting(512, None), Setting(512, 0.85), Setting(512, None, is_raw=True))
