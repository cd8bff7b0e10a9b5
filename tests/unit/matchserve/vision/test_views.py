"""Synthetic views: where their points are in the image as sent."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from matchserve.limits import MAX_VIEWS
from matchserve.types import Image, Keypoints, UInt8
from matchserve.vision.views import FRONTAL, View, ViewRegion, render, view_pairs


def dots(size: tuple[int, int]) -> tuple[UInt8, np.ndarray]:
    """Bright blobs on black, and their centres."""
    xy = np.array([[60, 50], [200, 60], [120, 150], [240, 170]])
    grey = np.zeros((size[1], size[0]), np.uint8)
    for x, y in xy:
        cv2.circle(grey, (int(x), int(y)), 7, 255, -1)
    return np.asarray(cv2.GaussianBlur(grey, (0, 0), 3), np.uint8), xy.astype(np.float64)


@pytest.mark.parametrize("view", [View(2, 0), View(2, 45), View(4, 112.5), View(4, 90)])
@pytest.mark.parametrize("reduction", [1, 2])
def test_points_of_a_view_are_found_in_the_image_as_sent(view: View, reduction: int) -> None:
    grey, xy = dots((300, 220))
    image = Image(grey, (300 * reduction, 220 * reduction))
    rendered = render(image, view)
    count, _, _, centres = cv2.connectedComponentsWithStats(
        (rendered.image.grey > 0.5 * rendered.image.grey.max()).astype(np.uint8)
    )
    found = rendered.to_sent(centres[1:])
    assert count == 1 + len(xy)
    expected = (xy + 0.5) * reduction - 0.5
    gap = np.linalg.norm(found[:, None] - expected[None], axis=2).min(axis=0)
    assert gap.max() < 2.0 * reduction
    assert rendered.image.grey.size < 1.05 * grey.size


def test_a_long_image_does_not_make_larger_views() -> None:
    panorama = Image(np.zeros((100, 2000), np.uint8), (2000, 100))
    assert render(panorama, View(2, 45)).image.grey.size < 1.1 * panorama.grey.size


def test_the_scale_and_angle_of_keypoints_follow_the_map() -> None:
    image = Image(np.zeros((200, 200), np.uint8), (200, 200))
    rendered = render(image, View(4, 0))
    along = np.array([0, np.pi / 2, np.pi / 4], np.float32)
    ones = np.ones(3, np.float32)
    keypoints = Keypoints(np.zeros((3, 2), np.float32), ones, along, ones)
    sent = rendered.keypoints_as_sent(keypoints, is_upright=False)
    np.testing.assert_allclose(sent.sigma, 2.0, rtol=1e-5)
    np.testing.assert_allclose(sent.angle, [0, np.pi / 2, np.arctan(0.25)], atol=1e-6)
    upright = rendered.keypoints_as_sent(keypoints, is_upright=True)
    np.testing.assert_array_equal(upright.angle, along)


def test_keypoints_are_taken_inside_the_image_only() -> None:
    image = Image(np.zeros((100, 200), np.uint8), (200, 100))
    rendered = render(image, View(2, 45))
    width, height = rendered.image.size
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    xy = np.stack([x.ravel(), y.ravel()], axis=1)
    allowed = ViewRegion(rendered, image.size).allows(xy, rendered.image.size)
    # The canvas is larger than the parallelogram that shows the image.
    shown = abs(np.linalg.det(rendered.linear)) * image.grey.size
    assert allowed.sum() == pytest.approx(shown, rel=0.05)
    assert allowed.sum() < 0.95 * len(xy)
    sent = rendered.to_sent(xy[allowed])
    assert (sent >= 0).all()
    assert (sent <= [199, 99]).all()


def test_the_order_begins_with_the_images_as_sent_and_repeats_nothing() -> None:
    pairs = view_pairs()
    assert pairs[0] == (FRONTAL, FRONTAL)
    assert len(set(pairs)) == len(pairs) == MAX_VIEWS
    tilts = [max(one.tilt, other.tilt) for one, other in pairs if FRONTAL in (one, other)]
    assert tilts == sorted(tilts)
