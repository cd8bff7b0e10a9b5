"""Keypoints of a score: limits, masks, orientations and order are those of the DoG detector."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from matchserve.pattern import generate
from matchserve.types import Image, Keypoints, UInt8
from matchserve.vision.decode import from_array
from matchserve.vision.keypoints import DetectOptions
from matchserve.vision.learned_keypoints import detect_learned
from matchserve.vision.masks import Mask
from matchserve.vision.score_peaks import Pyramid
from tests.unit.matchserve.vision.test_score_peaks import blob_score

PYRAMID = Pyramid(per_octave=2, sigma=2.0)
FEW = DetectOptions(max_keypoints=200, further_orientations=0.0)


@pytest.fixture(scope="module")
def photo() -> UInt8:
    return generate((480, 360), seed=4)


def found(image: Image, options: DetectOptions = FEW, mask: Mask | None = None) -> Keypoints:
    return detect_learned(blob_score, PYRAMID, image, options, mask)


def test_the_best_come_first_and_no_more_than_wanted(photo: UInt8) -> None:
    keypoints = found(from_array(photo))
    assert len(keypoints) == 200
    assert (np.diff(keypoints.score) <= 0).all()
    more = found(from_array(photo), replace(FEW, max_keypoints=300))
    # Better ones never give way to worse ones, so the best stay the best.
    np.testing.assert_array_equal(more.xy[:200], keypoints.xy)


def test_the_same_image_gives_the_same_keypoints(photo: UInt8) -> None:
    one, other = found(from_array(photo)), found(from_array(photo.copy()))
    for name in ("xy", "sigma", "angle", "score"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_mask_hides_keypoints_and_they_are_not_counted(photo: UInt8) -> None:
    left = np.zeros(photo.shape[:2], np.uint8)
    left[:, :240] = 255
    keypoints = found(from_array(photo), mask=Mask((), left))
    assert len(keypoints) == 200
    assert keypoints.xy[:, 0].max() < 240


def test_orientations_turn_with_the_image(photo: UInt8) -> None:
    square = np.ascontiguousarray(photo[:, :360])
    one = found(from_array(square))
    other = found(from_array(np.ascontiguousarray(np.rot90(square, -1))))  # clockwise
    expected = np.column_stack([359 - one.xy[:, 1], one.xy[:, 0]])
    gaps = np.linalg.norm(other.xy[None] - expected[:, None], axis=2)
    nearest = gaps.argmin(axis=1)
    same = gaps.min(axis=1) < 0.05
    assert same.mean() > 0.95
    turn = other.angle[nearest] - one.angle - np.pi / 2
    error = np.abs((turn[same] + np.pi) % (2 * np.pi) - np.pi)
    assert np.median(error) < 0.01
    assert (error < 0.05).mean() > 0.9


def test_further_orientations_follow_their_position(photo: UInt8) -> None:
    plain = found(from_array(photo))
    further = found(from_array(photo), replace(FEW, further_orientations=0.5))
    assert 200 < len(further) <= 300
    assert len(np.unique(further.xy, axis=0)) == 200
    first = np.r_[True, (np.diff(further.xy, axis=0) != 0).any(axis=1)]
    np.testing.assert_array_equal(further.angle[first], plain.angle)
    assert (np.cumsum(first)[~first] <= 100).all()  # of the best half only


def test_duplicates_count_every_orientation(photo: UInt8) -> None:
    keypoints = found(from_array(photo), replace(FEW, duplicates=True))
    assert len(keypoints) == 200
    assert len(np.unique(keypoints.xy, axis=0)) < 200


def test_upright_keypoints_have_no_angle(photo: UInt8) -> None:
    options = replace(FEW, upright=True, further_orientations=0.5)
    keypoints = found(from_array(photo), options)
    assert len(keypoints) == 200
    assert not keypoints.angle.any()


def test_coordinates_are_those_of_the_image_as_sent(photo: UInt8) -> None:
    large = cv2.resize(photo, (960, 720), interpolation=cv2.INTER_CUBIC)
    reduced = found(from_array(np.asarray(large, np.uint8), max_side=480))
    assert reduced.xy[:, 0].max() > 480
    assert reduced.sigma.min() > 2.0  # at least one pixel of the working image


@pytest.mark.parametrize("value", [0, 128, 255])
def test_a_flat_image_has_no_keypoints(value: int) -> None:
    assert len(found(from_array(np.full((200, 300), value, np.uint8)))) == 0
