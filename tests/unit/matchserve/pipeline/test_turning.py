"""Matching images that are turned against each other, with upright patches."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from matchserve.clock import Call
from matchserve.matcher import Matcher
from matchserve.options import DEFAULT_OPTIONS
from matchserve.pipeline import orientations as module
from matchserve.pipeline.describing import Describer
from matchserve.pipeline.judging import find_matches
from matchserve.pipeline.turning import find_turn, turned, voted_rotation
from matchserve.types import Features, Keypoints, UInt8
from matchserve.vision.decode import from_array
from matchserve.vision.keypoints import DetectOptions
from matchserve.vision.matching import MatchOptions

DEGREES = 130.0


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher("compact")


@pytest.fixture(scope="module")
def images(grey_photograph: UInt8) -> tuple[UInt8, UInt8]:
    grey = grey_photograph[:300, :300]
    matrix = cv2.getRotationMatrix2D((149.5, 149.5), -DEGREES, 1.0)
    return grey, np.asarray(cv2.warpAffine(grey, matrix, (300, 300)), np.uint8)


def test_votes_find_a_rotation_among_wrong_matches() -> None:
    rng = np.random.default_rng(0)
    points0 = rng.uniform(0, 300, (40, 2)).astype(np.float32)
    angle = np.radians(77.0)
    spin = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    points1 = (points0 @ spin.T).astype(np.float32)
    points1[:20] = rng.uniform(0, 300, (20, 2))
    confidence = np.full(40, 0.5, np.float32)
    found = voted_rotation(points0, points1, confidence, np.radians(60.0))
    assert np.degrees(found) == pytest.approx(77.0, abs=1.5)


def test_without_votes_the_guess_stays() -> None:
    points = np.zeros((3, 2), np.float32)
    nothing = np.zeros(3, np.float32)
    assert voted_rotation(points, points, nothing, 1.25) == 1.25


def test_the_angle_of_a_turned_image_is_found(
    matcher: Matcher, images: tuple[UInt8, UInt8]
) -> None:
    options = replace(DEFAULT_OPTIONS, detect=DetectOptions(400, upright=True))
    features = [matcher.features(image, options) for image in images]
    second = from_array(images[1])
    counts = []

    def describe(keypoints: Keypoints) -> Features:
        counts.append(len(keypoints))
        rows = matcher.descriptor.describe(second, keypoints, Call())
        return replace(features[1], keypoints=keypoints, descriptors=rows)

    card = matcher.descriptor.card
    angle = find_turn(
        features[0],
        features[1].keypoints,
        describe,
        lambda pair: find_matches(pair, None, card, MatchOptions(), options.judge),
    )
    assert np.degrees(angle) % 360 == pytest.approx(DEGREES, abs=2.0)
    assert len(counts) == 12
    assert (turned(features[1].keypoints, angle).angle == np.float32(angle)).all()


def test_search_matches_turned_images_without_orientations(
    matcher: Matcher, images: tuple[UInt8, UInt8], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(DEFAULT_OPTIONS, detect=DetectOptions(400), orientation="search")
    assert matcher.match(*images, options).orientation == "oriented"
    # As if the keypoints had been given wrong orientations: oriented patches match nothing.
    described = Describer.describe

    def spoiled(self: Describer, *given: object) -> Features:
        features = described(self, *given)  # type: ignore[arg-type]
        if not features.keypoints.angle.any():
            return features
        order = np.random.default_rng(0).permutation(len(features.descriptors))
        return replace(features, descriptors=features.descriptors[order])

    monkeypatch.setattr(Describer, "describe", spoiled)
    monkeypatch.setattr(module, "CONVINCING_MATCHES", 1e6)
    result = matcher.match(*images, options)
    assert result.orientation == "turned"
    assert int(result.verification.inliers.sum()) > 50
    upright_only = matcher.match(*images, replace(options, orientation="auto"))
    assert upright_only.orientation != "turned"
    assert int(upright_only.verification.inliers.sum()) < 25
