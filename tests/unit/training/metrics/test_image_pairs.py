"""Figures of merit, each against a value worked out by hand or by a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from training.evaluation.benchmarks.sfm import align_similarity
from training.metrics.image_pairs import (
    apply_homography,
    corner_error,
    direction_error_deg,
    epipolar_ok,
    error_auc,
    mean_average_accuracy,
    most_correct,
    rotation_error_deg,
    seen_in_both,
    transfer_error,
)

SHIFT = np.array([[1.0, 0, 5], [0, 1, -3], [0, 0, 1]])


def test_transfer_error_is_measured_in_the_second_image() -> None:
    twice = np.diag([2.0, 2.0, 1.0])
    error = transfer_error(twice, np.array([[10.0, 10.0]]), np.array([[23.0, 24.0]]))
    assert error.tolist() == [5.0]


def test_the_ceiling_counts_each_keypoint_once() -> None:
    left = np.array([[0, 0], [10, 0], [10.5, 0], [50, 50], [80, 80]], np.float64)
    right = apply_homography(SHIFT, left[[0, 1, 3]])
    right = right + np.array([[0.5, 0], [0.2, 0], [3.5, 0]])
    # 0 is found; 1 and 2 have one candidate for both; 3 is too far; 4 has none.
    assert most_correct(SHIFT, left, right, 3.0) == 2
    assert most_correct(SHIFT, left, right, 4.0) == 3
    assert most_correct(SHIFT, left[:0], right, 3.0) == 0


def test_the_ceiling_agrees_with_an_assignment() -> None:
    rng = np.random.default_rng(0)
    left, right = rng.uniform(0, 200, (300, 2)), rng.uniform(0, 200, (250, 2))
    right[:150] = apply_homography(SHIFT, left[:150]) + rng.normal(0, 2, (150, 2))
    gap = np.linalg.norm(apply_homography(SHIFT, left)[:, None] - right[None], axis=2)
    rows, columns = linear_sum_assignment(-(gap <= 3.0).astype(float))
    assert most_correct(SHIFT, left, right, 3.0) == int((gap[rows, columns] <= 3.0).sum())


def test_no_matcher_exceeds_the_ceiling_where_keypoints_share_a_position() -> None:
    left = np.repeat(np.array([[10.0, 10.0], [60.0, 60.0]]), 3, axis=0)
    right = apply_homography(SHIFT, left)
    correct = int((transfer_error(SHIFT, left, right) <= 3.0).sum())
    assert correct == 6  # three orientations of each point, each matched to its own
    assert most_correct(SHIFT, left, right, 3.0) == correct


def test_corner_error_of_a_shift_is_its_length() -> None:
    assert corner_error(SHIFT, np.eye(3), (640, 480)) == pytest.approx(np.hypot(5, 3))
    assert corner_error(None, np.eye(3), (640, 480)) == float("inf")


def test_auc_of_known_curves() -> None:
    assert error_auc([0.0, 0.0], [5]) == [1.0]
    assert error_auc([9.0, float("inf")], [5]) == [0.0]
    # One error of 2 among two: recall rises linearly to 1/2 at 2 and stays, up to 4.
    assert error_auc([2.0, 100.0], [4])[0] == pytest.approx((2 * 0.5 / 2 + 2 * 0.5) / 4)


def test_auc_follows_the_published_rule() -> None:
    """SuperGlue's pose_auc, written as its authors describe it."""
    rng = np.random.default_rng(1)
    errors = rng.exponential(8, 200)
    ordered = np.r_[0.0, np.sort(errors)]
    recall = np.r_[0.0, np.arange(1, 201) / 200]
    for limit, found in zip((5, 10, 20), error_auc(errors.tolist(), (5, 10, 20)), strict=True):
        last = np.searchsorted(ordered, limit)
        x, y = np.r_[ordered[:last], limit], np.r_[recall[:last], recall[last - 1]]
        assert found == pytest.approx(np.trapezoid(y, x) / limit)


def test_angles_between_rotations_and_directions() -> None:
    turn = np.radians(25)
    rotation = np.array(
        [[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]]
    )
    assert rotation_error_deg(rotation, np.eye(3)) == pytest.approx(25)
    assert direction_error_deg(np.array([1.0, 0, 0]), np.array([0, 3.0, 0])) == pytest.approx(90)
    assert direction_error_deg(np.array([1.0, 0, 0]), np.array([-2.0, 0, 0])) == pytest.approx(180)


def test_epipolar_distance_is_in_pixels() -> None:
    # Pure sideways motion: epipolar lines are rows, so a match may move along x only.
    essential = np.array([[0, 0, 0], [0, 0, -1.0], [0, 1.0, 0]])
    left = np.array([[0.1, 0.2], [0.1, 0.2], [0.1, 0.2]])
    right = left + np.array([[0.3, 0.0], [0.3, 0.002], [0.3, 0.02]])
    # A row apart by 0.002 of 1000 px focal is 2 px, shared by both images: 1.41 by Sampson.
    assert epipolar_ok(essential, left, right, 1000.0, 1.5).tolist() == [True, True, False]
    assert epipolar_ok(essential, left, right, 1000.0, 1.3).tolist() == [True, False, False]


def test_a_similarity_is_recovered_exactly() -> None:
    rng = np.random.default_rng(2)
    points = rng.normal(size=(12, 3))
    rotation, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    rotation *= np.sign(np.linalg.det(rotation))
    target = 2.5 * points @ rotation.T + [1, -2, 3]
    scale, turn, shift = align_similarity(points, target)
    assert scale == pytest.approx(2.5)
    assert np.allclose(turn, rotation)
    assert np.allclose(shift, [1, -2, 3])


def test_mean_average_accuracy_is_the_mean_of_ten_shares() -> None:
    assert mean_average_accuracy([0.5], 10) == 1.0
    assert mean_average_accuracy([3.0], 10) == pytest.approx(0.8)  # within 3, 4, ... 10
    assert mean_average_accuracy([3.5, 180.0], 10) == pytest.approx(0.7 / 2)
    assert mean_average_accuracy([10.5], 10) == 0.0


def test_keypoints_seen_in_both_images_are_counted_in_either() -> None:
    shift = np.array([[1.0, 0, 50], [0, 1, 0], [0, 0, 1]])
    left = np.array([[10.0, 10], [49, 10], [60, 10], [99, 10]])  # at 60, 99, 110, 149 on the right
    right = np.array([[50.0, 5], [99, 5], [20, 5]])  # at 0, 49, -30 on the left
    assert seen_in_both(shift, left, right, (100, 80), (100, 80)) == (2 + 2) / 2
    assert seen_in_both(shift, left[:0], right, (100, 80), (100, 80)) == 1.0
