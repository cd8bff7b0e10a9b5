from __future__ import annotations

import numpy as np
import pytest

from matchserve.types import Float64, Verification
from matchserve.vision.geometry import VerifyOptions, verify
from tests.unit.matchserve.vision.point_pairs import SIZES, planar, spatial, spatial_plane


def auto(first: Float64, second: Float64, confidence: Float64 | None = None) -> Verification:
    sure = None if confidence is None else confidence.astype(np.float32)
    return verify(first, second, SIZES, VerifyOptions("auto"), sure)


def similar(count: int, noise_px: float) -> tuple[Float64, Float64]:
    """Points that are turned by 40 degrees and reduced, and as many wrong ones."""
    rng = np.random.default_rng(3)
    first = rng.uniform((50, 50), (750, 550), (2 * count, 2))
    cosine, sine = 0.7 * np.cos(np.radians(40)), 0.7 * np.sin(np.radians(40))
    second = first @ np.array([[cosine, sine], [-sine, cosine]]) + (300.0, -20.0)
    second += rng.normal(0, noise_px, second.shape)
    second[count:] = rng.uniform((0, 0), (800, 600), (count, 2))
    return first, second


@pytest.mark.parametrize("on_plane", [0, 120])
def test_auto_finds_depth_beside_a_plane(on_plane: int) -> None:
    """Matches off the plane decide, also where most matches are on it."""
    first, second, _, _ = spatial(80, 20)
    flat0, flat1, _ = spatial_plane(on_plane)
    found = auto(np.r_[first, flat0], np.r_[second, flat1])
    assert found.kind == "fundamental"
    assert found.inliers[:80].mean() > 0.9


def test_auto_is_not_misled_by_the_slack_of_a_fundamental_matrix() -> None:
    """Wrong matches agree with some fundamental matrix, and a rough plane with almost any."""
    first, second, _ = planar(count=60, outliers=60)
    second[:60] += np.random.default_rng(9).normal(0, 1.5, (60, 2))
    found = auto(first, second)
    assert found.kind in ("homography", "similarity")
    assert found.reason.startswith(found.kind)


@pytest.mark.parametrize("noise_px", [0.3, 2.5])
def test_auto_prefers_a_similarity_that_explains_the_matches(noise_px: float) -> None:
    found = auto(*similar(60, noise_px))
    assert found.kind == "similarity"
    assert found.reason.startswith(f"similarity: {found.inliers.sum()} candidates agree")


def test_auto_returns_a_homography_that_no_similarity_replaces() -> None:
    first, second, _ = planar()
    found = auto(first, second)
    assert found.kind == "homography"
    assert "far off any similarity" in found.reason
    assert found.inliers[:200].mean() > 0.97


def test_a_few_leaning_buildings_do_not_make_a_scene_deep() -> None:
    """Matches off the plane that agree on epipolar lines are few, but more than chance."""
    flat0, flat1 = similar(120, 0.3)
    tops0, tops1 = flat0[:20].copy(), flat1[:20].copy()
    tops1[:, 0] += np.linspace(12, 40, 20)
    found = auto(np.r_[flat0[:120], tops0 + 0.6], np.r_[flat1[:120], tops1 + 0.6])
    assert found.kind == "similarity"


def test_auto_fits_a_similarity_to_doubtful_matches_too() -> None:
    """Matches of a confidence below 0.1 are not for a fundamental matrix or a homography."""
    first, second = similar(30, 0.3)
    confidence = np.full(len(first), 0.05)
    found = auto(first, second, confidence)
    assert found.kind == "similarity"
    assert found.inliers[:30].mean() > 0.9


def test_auto_says_that_nothing_agrees() -> None:
    rng = np.random.default_rng(4)
    first, second = rng.uniform(0, 600, (2, 2, 2))
    found = auto(first, second)
    assert found.matrix is None
    assert found.reason == "too few matches agree on any geometry"


def test_a_fundamental_matrix_of_a_flat_scene_is_not_determined() -> None:
    first, second, _ = spatial_plane(150)
    found = verify(first, second, SIZES, VerifyOptions("fundamental"))
    assert found.reason.startswith("the fundamental matrix is not determined: ")
    spatial0, spatial1, _, _ = spatial()
    deep = verify(spatial0, spatial1, SIZES, VerifyOptions("fundamental"))
    assert deep.reason.startswith("fundamental: ")


def test_without_an_explanation_the_fundamental_matrix_is_the_same() -> None:
    first, second, _ = spatial_plane(150)
    explained = verify(first, second, SIZES, VerifyOptions("fundamental"))
    found = verify(first, second, SIZES, VerifyOptions("fundamental", explain=False))
    assert found.reason == ""
    assert found.matrix is not None
    assert explained.matrix is not None
    np.testing.assert_array_equal(found.matrix, explained.matrix)
    np.testing.assert_array_equal(found.inliers, explained.inliers)
    assert found.log_nfa == explained.log_nfa
