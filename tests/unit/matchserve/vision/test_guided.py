"""Guided matching: keypoints are compared only with those that the geometry allows."""

from __future__ import annotations

import numpy as np
import pytest

from matchserve.types import Features, Float64, Int32, Keypoints, Verification
from matchserve.vision import guided
from matchserve.vision.cameras import Camera
from matchserve.vision.guided import Band, find_guided

SHIFT = np.array([[1, 0, 20], [0, 1, -10], [0, 0, 1.0]])
NONE: Int32 = np.zeros((0, 2), np.int32)


def described(xy: Float64, rows: np.ndarray, *, is_binary: bool) -> Features:
    ones = np.ones(len(xy), np.float32)
    keypoints = Keypoints(xy.astype(np.float32), ones, 0 * ones, ones)
    if is_binary:
        return Features(keypoints, np.packbits(rows > 0, axis=1), "m", (800, 600))
    return Features(keypoints, rows / np.linalg.norm(rows, axis=1, keepdims=True), "m", (800, 600))


def repeated(*, is_binary: bool) -> tuple[Features, Features]:
    """600 points of a shifted image in 300 pairs of equal descriptors, such as windows have."""
    rng = np.random.default_rng(0)
    xy = rng.uniform((50, 50), (700, 500), (600, 2))
    rows = np.repeat(rng.normal(size=(300, 64)), 2, axis=0)
    noise = 0.1 * rng.normal(size=(2, 600, 64))
    return (
        described(xy, rows + noise[0], is_binary=is_binary),
        described(xy + np.array([20, -10]), rows + noise[1], is_binary=is_binary),
    )


def band_of(kind: str, matrix: Float64) -> Band:
    found = Verification(kind, matrix, np.zeros(0, np.bool_), 1.0)  # type: ignore[arg-type]
    band = Band.of(found, 3.0)
    assert band is not None
    return band


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize("block", [100, 256])
def test_repeated_structure_is_matched_where_the_homography_says(
    is_binary: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guided, "_BLOCK", block)
    features = repeated(is_binary=is_binary)
    points = tuple(np.asarray(side.keypoints.xy, np.float64) for side in features)
    found = find_guided(features, (points[0], points[1]), NONE, band_of("homography", SHIFT))
    pairs = found.matches.pairs
    assert len(pairs) > 590
    assert (pairs[:, 0] == pairs[:, 1]).mean() > 0.99
    # By descriptors alone the twin is as near: the networks are told so.
    assert np.median(found.ratio) > 0.7
    assert found.ratio.max() <= 1.0
    distance = found.matches.distance
    if is_binary:
        bits = features[0].descriptors[pairs[:, 0]] ^ features[1].descriptors[pairs[:, 1]]
        np.testing.assert_allclose(distance, np.unpackbits(bits, axis=1).sum(axis=1), atol=1e-3)
    else:
        gap = features[0].descriptors[pairs[:, 0]] - features[1].descriptors[pairs[:, 1]]
        np.testing.assert_allclose(distance, np.linalg.norm(gap, axis=1), atol=1e-3)


def test_matched_keypoints_are_left_alone() -> None:
    features = repeated(is_binary=False)
    points = tuple(np.asarray(side.keypoints.xy, np.float64) for side in features)
    taken = np.stack([np.arange(0, 600, 2), np.arange(0, 600, 2)], axis=1).astype(np.int32)
    found = find_guided(features, (points[0], points[1]), taken, band_of("homography", SHIFT))
    assert set(found.matches.pairs[:, 0]) <= set(range(1, 600, 2))
    everything = np.stack([np.arange(600), np.arange(600)], axis=1).astype(np.int32)
    none = find_guided(features, (points[0], points[1]), everything, band_of("homography", SHIFT))
    assert len(none.matches) == 0


def test_an_epipolar_band_is_measured_in_both_images() -> None:
    # A sideways motion: lines are rows, and points of image 1 have twice the resolution.
    fundamental = np.array([[0, 0, 0], [0, 0, -1.0], [0, 2.0, 0]])
    band = band_of("fundamental", fundamental)
    points0 = np.array([[10.0, 100.0]])
    points1 = np.array([[300.0, 200.0], [5.0, 202.9], [5.0, 203.1], [5.0, 190.0]])
    assert band.allows(points0, points1).tolist() == [[True, True, False, False]]


def test_the_band_of_a_pose_is_that_of_its_cameras() -> None:
    camera = Camera(500, 500, 320, 240)
    essential = np.array([[0, 0, 0], [0, 0, -1.0], [0, 1.0, 0]])  # a step along x
    found = Verification("pose", essential, np.zeros(0, np.bool_), 1.0)
    band = Band.of(found, 2.0, (camera, camera))
    assert band is not None
    allowed = band.allows(np.array([[100.0, 240.0]]), np.array([[400.0, 241.9], [400.0, 242.5]]))
    assert allowed.tolist() == [[True, False]]


def test_no_geometry_has_no_band() -> None:
    assert Band.of(Verification("fundamental", None, np.zeros(0, np.bool_), 0.0), 3.0) is None
