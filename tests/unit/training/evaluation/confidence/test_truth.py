"""Errors of matches against a known homography and known cameras."""

from __future__ import annotations

import numpy as np
import pycolmap

from training.data.scenes.observations import Camera
from training.evaluation.confidence.truth import CameraTruth, HomographyTruth, unrelated_error


def test_homography_error_is_the_same_both_ways() -> None:
    matrix = np.array([[1.5, 0.1, 5], [-0.1, 1.4, 2], [1e-4, 0, 1]])
    xy0 = np.random.default_rng(0).uniform(0, 200, (20, 2))
    moved = np.c_[xy0, np.ones(20)] @ matrix.T
    xy1 = moved[:, :2] / moved[:, 2:] + np.array([3.0, -1.0])
    forward = HomographyTruth(matrix)(xy0, xy1)
    backward = HomographyTruth(np.linalg.inv(matrix))(xy1, xy0)
    np.testing.assert_allclose(forward, backward)
    assert (forward > 0).all()


def test_equal_scales_give_the_transfer_error() -> None:
    truth = HomographyTruth(np.array([[1.0, 0, 7], [0, 1, -2], [0, 0, 1]]))
    xy0 = np.array([[10.0, 10.0]])
    np.testing.assert_allclose(truth(xy0, xy0 + np.array([10, 2])), [5.0])


def test_cameras_accept_true_matches_and_refuse_wrong_depths() -> None:
    """Two cameras side by side look at a fronto-parallel plane at depth 10."""
    intrinsics = pycolmap.Camera.create_from_model_id(
        1, pycolmap.CameraModelId.SIMPLE_PINHOLE, 500.0, 640, 480
    )
    one = Camera("one", np.eye(3), np.zeros(3), intrinsics)
    other = Camera("other", np.eye(3), np.array([-1.0, 0, 0]), intrinsics)
    x, y = np.meshgrid(np.linspace(-2, 3, 12), np.linspace(-3, 3, 12))
    points = np.stack([x.ravel(), y.ravel(), np.full(144, 10.0)], axis=1)
    truth = CameraTruth((one, other), (points, points))
    xy0, xy1 = one.project(points)[0], other.project(points)[0]
    np.testing.assert_allclose(truth(xy0, xy1), 0, atol=1e-6)
    np.testing.assert_allclose(truth(xy0, xy1 + np.array([0, 2.0])), 2.0, atol=1e-3)
    # On the epipolar line, but half as far away.
    assert np.isinf(truth(xy0, xy1 - np.array([50.0, 0]))).all()


def test_unrelated_images_have_no_right_match() -> None:
    assert np.isinf(unrelated_error(np.zeros((3, 2)), np.zeros((3, 2)))).all()
