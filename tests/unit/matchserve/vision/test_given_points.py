"""Points that the user gives."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from matchserve.errors import InvalidParameter
from matchserve.types import Image, UInt8
from matchserve.vision.given_points import DEFAULT_SIGMA, GivenPoints, place
from matchserve.vision.keypoints import DetectOptions, detect


@pytest.fixture
def grey(photograph: UInt8) -> UInt8:
    return np.ascontiguousarray(photograph[:300, :300].mean(axis=2).astype(np.uint8))


def apart(angle0: NDArray[Any], angle1: NDArray[Any]) -> NDArray[Any]:
    difference = (angle0 - angle1 + np.pi) % (2 * np.pi) - np.pi
    return np.asarray(np.abs(difference))


def test_orientations_are_those_of_the_detector(grey: UInt8) -> None:
    """One of the orientations that SIFT gives each position, within ten degrees."""
    image = Image(grey, (300, 300))
    found = detect(image, DetectOptions(max_keypoints=500, duplicates=True))
    placed = place(GivenPoints(found.xy, found.sigma), image, is_upright=False)
    same = (found.xy[:, None] == found.xy[None]).all(axis=2)
    same &= found.sigma[:, None] == found.sigma[None]
    difference = np.where(same, apart(placed.angle[:, None], found.angle[None]), np.inf).min(axis=1)
    assert (difference < np.radians(10)).mean() > 0.85


def test_orientations_turn_with_the_image(grey: UInt8) -> None:
    points = np.array([[x, y] for x in range(60, 250, 30) for y in range(60, 250, 30)], np.float32)
    image = Image(grey, (300, 300))
    turned = Image(np.asarray(cv2.rotate(grey, cv2.ROTATE_90_CLOCKWISE), np.uint8), (300, 300))
    moved = np.stack([299 - points[:, 1], points[:, 0]], axis=1)
    before = place(GivenPoints(points), image, is_upright=False).angle
    after = place(GivenPoints(moved), turned, is_upright=False).angle
    assert (apart(after, before + np.pi / 2) < np.radians(5)).mean() > 0.9


def test_given_values_are_kept_and_points_stay_in_order(grey: UInt8) -> None:
    image = Image(grey, (600, 600))  # a working copy of half the size
    given = GivenPoints(
        np.array([[50, 60], [10, 20.5]]), np.array([3.0, 7.0]), np.array([0.5, 1.0])
    )
    placed = place(given, image, is_upright=False)
    np.testing.assert_array_equal(placed.xy, [[50, 60], [10, 20.5]])
    np.testing.assert_array_equal(placed.sigma, [3, 7])
    np.testing.assert_array_equal(placed.angle, [0.5, 1.0])
    assert place(given, image, is_upright=True).angle.tolist() == [0, 0]
    plain = place(GivenPoints(given.xy), image, is_upright=True)
    np.testing.assert_allclose(plain.sigma, 2 * DEFAULT_SIGMA)


@pytest.mark.parametrize("point", [(-1, 5), (5, -1), (300, 5), (5, 300)])
def test_points_outside_are_refused(grey: UInt8, point: tuple[float, float]) -> None:
    given = GivenPoints(np.array([(5, 5), point]))
    with pytest.raises(InvalidParameter, match="keypoint 1 is outside of the image of 300x300"):
        place(given, Image(grey, (300, 300)), is_upright=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (([[1, 2, 3]],), "rows of x, y"),
        (([[1, float("nan")]],), "finite"),
        (([["a", "b"]],), "must be numbers"),
        (([[1, 2]], [1, 2]), "one number for each"),
        (([[1, 2]], [0.0]), "scales must be in"),
    ],
)
def test_wrong_values_are_refused(values: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        GivenPoints(*values)  # type: ignore[arg-type]
