"""A weighted fit uses matches that are some pixels off, and never makes an exact fit worse."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from matchserve.types import Float32, Float64
from matchserve.vision.estimators import FitOptions, fit_matrix
from matchserve.vision.refit import mapped, refit_homography

TRUTH = np.array([[0.9, -0.2, 60], [0.15, 1.05, -30], [1e-4, -5e-5, 1.0]])


def sure(points: Float64) -> Float32:
    return np.ones(len(points), np.float32)


def curved(points: Float64) -> Float64:
    """Map points by the truth, then by a lens that moves them by up to about 12 pixels."""
    straight = cv2.perspectiveTransform(points[None], TRUTH)[0]
    offset = straight - np.array([400.0, 300.0])
    squared = (offset**2).sum(axis=1, keepdims=True)
    return np.asarray(straight + offset * squared * 5e-8)


def test_an_exact_homography_stays() -> None:
    first = np.random.default_rng(0).uniform(0, 600, (80, 2))
    second = cv2.perspectiveTransform(first[None], TRUTH)[0]
    found = refit_homography(TRUTH, first, second, sure(first), 3.0)
    np.testing.assert_allclose(found, TRUTH, atol=1e-6)


def test_a_flat_scene_is_fitted_more_precisely_than_by_all_inliers_alike() -> None:
    """Some inliers are badly placed: they count less than the many that are exact."""
    rng = np.random.default_rng(4)
    first = rng.uniform(0, 600, (100, 2))
    exact = cv2.perspectiveTransform(first[None], TRUTH)[0]
    second = exact + rng.normal(0, 0.1, first.shape)
    second[:20] += rng.uniform(0.5, 2.0, (20, 2))
    second[20:25] += (8.0, 0.0)
    inliers = np.r_[0:20, 25:100]
    alike = np.asarray(cv2.findHomography(first[inliers], second[inliers], 0)[0], np.float64)
    sharp = refit_homography(alike, first, second, sure(first), 3.0)
    errors = [np.linalg.norm(mapped(each, first) - exact, axis=1).mean() for each in (alike, sharp)]
    assert errors[1] < 0.5 * errors[0]


def test_wrong_matches_do_not_move_it() -> None:
    rng = np.random.default_rng(1)
    first = rng.uniform(0, 600, (200, 2))
    second = cv2.perspectiveTransform(first[None], TRUTH)[0]
    second[:80] = rng.uniform(0, 600, (80, 2))
    found = refit_homography(TRUTH, first, second, sure(first), 3.0)
    np.testing.assert_allclose(mapped(found, first[80:]), second[80:], atol=0.2)


def test_too_few_matches_leave_it_as_it_is() -> None:
    first = np.random.default_rng(2).uniform(0, 600, (7, 2))
    second = cv2.perspectiveTransform(first[None], TRUTH)[0] + 1.0
    assert refit_homography(TRUTH, first, second, sure(first), 3.0) is TRUTH


def test_matches_that_are_almost_right_help_where_there_are_no_others() -> None:
    rng = np.random.default_rng(3)
    crowd = rng.uniform((50, 50), (220, 220), (100, 2))
    sparse = rng.uniform((0, 0), (800, 600), (60, 2))
    first = np.concatenate([crowd, sparse])
    second = curved(first) + rng.normal(0, 0.3, first.shape)
    alone, _ = cv2.findHomography(crowd, curved(crowd) + rng.normal(0, 0.3, crowd.shape), 0)
    refitted = refit_homography(np.asarray(alone), first, second, sure(first), 3.0)
    corners = np.array([[0.0, 0.0], [800, 0], [800, 600], [0, 600]])
    errors = [
        np.linalg.norm(mapped(np.asarray(each), corners) - curved(corners), axis=1).mean()
        for each in (alone, refitted)
    ]
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.parametrize("seed", range(3))
def test_a_second_plane_does_not_take_the_fit_over(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first = rng.uniform(0, 600, (140, 2))
    second = cv2.perspectiveTransform(first[None], TRUTH)[0] + rng.normal(0, 0.3, first.shape)
    second[100:] += (8.0, 0.0)
    fit = fit_matrix("homography", first, second, FitOptions(3.0), sure(first))
    assert fit.matrix is not None
    np.testing.assert_array_equal(fit.inliers, np.arange(140) < 100)
