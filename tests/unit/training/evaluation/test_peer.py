"""OpenCV's SIFT as the peer of the benchmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from matchserve.pattern import generate_pair
from matchserve.types import Float64
from matchserve.vision.decode import from_array
from matchserve.vision.geometry import Camera
from training.evaluation.peer import match_by_peer, pose_by_usac
from training.evaluation.predictions import ImageSet
from training.evaluation.protocol import Options


def _views(outliers: int) -> tuple[Float64, Float64, Float64, Float64]:
    """Points of two cameras of focal length 500, the first `outliers` wrong, and the pose."""
    rng = np.random.default_rng(0)
    points = rng.uniform([-2, -2, 4], [2, 2, 8], (120, 3))
    turn = 0.2
    rotation = np.array(
        [[np.cos(turn), 0, np.sin(turn)], [0, 1, 0], [-np.sin(turn), 0, np.cos(turn)]]
    )
    shift = np.array([-1.0, 0.1, 0.2])
    moved = points @ rotation.T + shift
    xy0, xy1 = (500 * p[:, :2] / p[:, 2:] + [320, 240] for p in (points, moved))
    xy1[:outliers] += rng.uniform(40, 90, (outliers, 2))
    return xy0, xy1, rotation, shift / np.linalg.norm(shift)


def test_pose_is_found_among_outliers() -> None:
    xy0, xy1, rotation, shift = _views(30)
    camera = Camera(500, 500, 320, 240)
    pose, inliers = pose_by_usac((xy0, xy1), (camera, camera), 1.0)
    assert pose is not None
    np.testing.assert_allclose(pose[:, :3], rotation, atol=1e-3)
    np.testing.assert_allclose(pose[:, 3], shift, atol=1e-2)
    assert inliers[30:].all()
    assert inliers[:30].mean() < 0.3


@pytest.mark.parametrize("count", [0, 5])
def test_too_few_points_have_no_pose(count: int) -> None:
    xy0, xy1, _, _ = _views(0)
    camera = Camera(500, 500, 320, 240)
    pose, inliers = pose_by_usac((xy0[:count], xy1[:count]), (camera, camera), 1.0)
    assert pose is None
    assert not inliers.any()


def test_matches_follow_the_homography_and_an_empty_image_has_none(tmp_path: Path) -> None:
    first, second, homography = generate_pair((320, 240), seed=3)
    flat = np.full_like(first, 128)
    images = {
        "a": lambda: from_array(first),
        "b": lambda: from_array(second),
        "flat": lambda: from_array(flat),
    }
    data = ImageSet(images, [("a", "b"), ("a", "flat")], "digest")
    found = match_by_peer(data, Options(max_keypoints=400, cache=tmp_path))
    left, right = found["a", "b"]
    moved = np.c_[left, np.ones(len(left))] @ homography.T
    error = np.linalg.norm(moved[:, :2] / moved[:, 2:] - right, axis=1)
    assert len(left) > 30
    assert np.mean(error < 3) > 0.8
    assert len(found["a", "flat"][0]) == 0
