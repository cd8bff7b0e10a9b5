"""Points that the user gives."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from matchserve.errors import DeadlineExceeded, InvalidParameter
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
        (([[1 + 1j, 2]],), "must be numbers"),
        ((np.ones((1, 2), "M8[s]"),), "must be numbers"),
        (([[1, 2]], [1, 2]), "one number for each"),
        (([[1, 2]], [0.0]), "scales must be in"),
    ],
)
def test_wrong_values_are_refused(values: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        GivenPoints(*values)  # type: ignore[arg-type]


@pytest.mark.parametrize("sigma", [1.6, 6, 12, 30, 90])
def test_directions_are_right_at_every_scale(sigma: float) -> None:
    """Large scales are looked at in reduced images."""
    y, x = np.mgrid[:800, :800]
    ramp = 128 + (x - 400) * 0.2 * np.cos(0.5) + (y - 400) * 0.2 * np.sin(0.5)
    image = Image(np.round(ramp).astype(np.uint8), (800, 800))
    points = np.array([(400, 400), (410.25, 399.5)])
    placed = place(GivenPoints(points, np.full(2, sigma)), image, is_upright=False)
    assert apart(placed.angle, np.full(2, 0.5)).max() < np.radians(6)


def test_points_in_several_tiles_have_the_directions_of_each_alone(photograph: UInt8) -> None:
    grey = cv2.resize(photograph.mean(axis=2).astype(np.uint8), (1400, 1300))
    image = Image(np.asarray(grey, np.uint8), (1400, 1300))
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 1299, (60, 2)).astype(np.float32)
    scales = rng.choice([1.5, 5.0, 11.0, 40.0], 60)
    together = place(GivenPoints(points, scales), image, is_upright=False).angle
    for number in range(60):
        one = GivenPoints(points[number : number + 1], scales[number : number + 1])
        alone = place(one, image, is_upright=False).angle
        assert apart(together[number], alone).max() < np.radians(2)


def cpu_s(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def test_points_of_large_scales_cost_less_than_one_blur() -> None:
    """A blur of sigma 1000 alone would take a hundred times as long."""
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 256, (3000, 3000), np.uint8)
    scales = 1000 / 2 ** (np.arange(20) / 2)
    given = GivenPoints(np.full((20, 2), 1500, np.float32), scales.astype(np.float32))
    blur = cpu_s(lambda: cv2.GaussianBlur(grey.astype(np.float32), (0, 0), 11))
    found = cpu_s(lambda: place(given, Image(grey, (3000, 3000)), is_upright=False))
    assert found < 3 * blur


def test_the_search_for_directions_can_be_ended() -> None:
    """By a deadline, between any two parts of the image."""
    image = Image(np.zeros((2000, 2000), np.uint8), (2000, 2000))
    places = np.random.default_rng(0).uniform(0, 1999, (500, 2)).astype(np.float32)
    points = GivenPoints(places)
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 10:
            raise DeadlineExceeded("over")

    with pytest.raises(DeadlineExceeded):
        place(points, image, is_upright=False, check=check)
    assert len(calls) == 10
