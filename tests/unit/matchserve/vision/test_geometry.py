from __future__ import annotations

import math

import cv2
import numpy as np
import pytest

from matchserve.errors import InvalidParameter
from matchserve.types import VerifyKind
from matchserve.vision.geometry import Camera, VerifyOptions, log_false_alarms, verify
from tests.unit.matchserve.vision.point_pairs import CAMERA, SIZES, planar, spatial


def test_homography_is_found() -> None:
    first, second, truth = planar()
    found = verify(first, second, SIZES, VerifyOptions("homography"))
    assert found.matrix is not None
    corners = np.array([[[0.0, 0.0], [799, 0], [799, 599], [0, 599]]])
    gap = cv2.perspectiveTransform(corners, found.matrix) - cv2.perspectiveTransform(corners, truth)
    assert np.abs(gap).max() < 1.0
    assert found.inliers[:200].mean() > 0.97
    assert found.inliers[200:].mean() < 0.03
    assert found.confidence > 0.999


def test_fundamental_matrix_is_found() -> None:
    first, second, _, _ = spatial()
    found = verify(first, second, SIZES, VerifyOptions("fundamental"))
    assert found.matrix is not None
    assert np.linalg.matrix_rank(found.matrix, tol=1e-6) == 2
    assert found.inliers[:200].mean() > 0.95
    assert found.confidence > 0.999


def test_relative_pose_is_found() -> None:
    first, second, rotation, translation = spatial()
    options = VerifyOptions("pose", threshold_px=1.5, cameras=(CAMERA, CAMERA))
    found = verify(first, second, SIZES, options)
    assert found.pose is not None
    assert found.matrix is not None
    cosine = (np.trace(found.pose[:, :3] @ rotation.T) - 1) / 2
    assert math.degrees(math.acos(min(1.0, cosine))) < 0.5
    assert math.degrees(math.acos(min(1.0, float(found.pose[:, 3] @ translation)))) < 2.0
    x0 = np.column_stack([first[:200], np.ones(200)]) @ np.linalg.inv(CAMERA.matrix).T
    x1 = np.column_stack([second[:200], np.ones(200)]) @ np.linalg.inv(CAMERA.matrix).T
    assert np.abs(np.einsum("ni,ij,nj->n", x1, found.matrix, x0)).mean() < 1e-2


@pytest.mark.parametrize("kind", ["homography", "affine", "similarity", "fundamental", "pose"])
def test_the_same_points_give_the_same_answer(kind: VerifyKind) -> None:
    first, second, _ = planar()
    options = VerifyOptions(kind, cameras=(CAMERA, CAMERA))
    answers = [verify(first, second, SIZES, options) for _ in range(3)]
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer.inliers, answers[0].inliers)
        np.testing.assert_array_equal(np.asarray(answer.matrix), np.asarray(answers[0].matrix))


@pytest.mark.parametrize(
    "kind", ["none", "homography", "affine", "similarity", "fundamental", "pose"]
)
@pytest.mark.parametrize("count", range(10))
def test_too_few_points_are_an_answer(kind: VerifyKind, count: int) -> None:
    first, second, _ = planar()
    options = VerifyOptions(kind, cameras=(CAMERA, CAMERA))
    found = verify(first[:count], second[:count], SIZES, options)
    assert found.inliers.shape == (count,)
    if count <= 2 or (count <= 4 and kind not in ("affine", "similarity")):
        assert found.matrix is None
        assert found.confidence == 0.0


DEGENERATE = {
    "all equal": np.full((40, 2), 100.0),
    "one line": np.column_stack([np.arange(40) * 5.0, np.arange(40) * 2.0]),
    "two places": np.tile([[10.0, 10.0], [500.0, 300.0]], (20, 1)),
    "not a number": np.full((40, 2), np.nan),
    "infinite": np.full((40, 2), np.inf),
    "huge": np.random.default_rng(0).uniform(-1e30, 1e30, (40, 2)),
    "some not a number": np.where(
        np.arange(80).reshape(40, 2) % 7 == 0, np.nan, np.arange(80).reshape(40, 2) * 3.7
    ),
}


@pytest.mark.parametrize("kind", ["homography", "affine", "similarity", "fundamental", "pose"])
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_points_are_an_answer(kind: VerifyKind, name: str) -> None:
    points = DEGENERATE[name]
    options = VerifyOptions(kind, cameras=(CAMERA, CAMERA))
    for other in (points, np.random.default_rng(1).uniform(0, 600, (40, 2))):
        found = verify(points, other, SIZES, options)
        assert found.inliers.shape == (40,)
        assert 0.0 <= found.confidence <= 1.0


@pytest.mark.parametrize("kind", ["homography", "affine", "similarity", "fundamental"])
def test_unrelated_points_have_no_confidence(kind: VerifyKind) -> None:
    rng = np.random.default_rng(3)
    confident = 0
    for _ in range(20):
        first, second = rng.uniform((0, 0), (800, 600), (2, 300, 2))
        confident += verify(first, second, SIZES, VerifyOptions(kind)).confidence > 0.5
    assert confident <= 1


@pytest.mark.parametrize("kind", ["homography", "affine", "similarity", "fundamental"])
def test_one_place_counts_once(kind: VerifyKind) -> None:
    """Keypoints that differ by orientation only repeat a point; that is no more evidence."""
    rng = np.random.default_rng(5)
    confident = 0
    for _ in range(30):
        first, second = rng.uniform((0, 0), (800, 600), (2, 20, 2))
        repeated = np.concatenate([np.arange(20), np.repeat(np.arange(4), 3)])
        found = verify(first[repeated], second[repeated], SIZES, VerifyOptions(kind))
        confident += found.confidence > 0.5
    assert confident <= 1


def test_the_threshold_decides_who_is_an_inlier() -> None:
    first, second, truth = planar()
    gap = np.linalg.norm(cv2.perspectiveTransform(first[None], truth)[0] - second, axis=1)
    tight = verify(first, second, SIZES, VerifyOptions("homography", threshold_px=0.3))
    loose = verify(first, second, SIZES, VerifyOptions("homography", threshold_px=5.0))
    assert 50 < tight.inliers.sum() < 180
    assert loose.inliers[gap < 2].all()
    assert gap[tight.inliers].max() < 1.0


def test_chance_is_that_of_the_second_image() -> None:
    """The same few inliers are surer in a large image than in a small one."""
    rng = np.random.default_rng(0)
    first = rng.uniform((0, 0), (200, 150), (30, 2))
    second = first + 5
    second[8:] = rng.uniform((0, 0), (200, 150), (22, 2))
    small = verify(first, second, ((9, 9), (200, 150)), VerifyOptions("fundamental"))
    large = verify(first, second, ((9, 9), (4000, 3000)), VerifyOptions("fundamental"))
    assert small.confidence < large.confidence


@pytest.mark.parametrize("sample", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("matches", [8, 30, 300, 3000])
@pytest.mark.parametrize("chance", [1e-5, 1e-2, 0.1])
def test_false_alarms_fall_with_inliers(matches: int, sample: int, chance: float) -> None:
    values = [log_false_alarms(matches, k, sample, chance) for k in range(sample, matches + 1)]
    assert values[0] == 0.0
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0


def test_what_chance_can_do_is_no_evidence() -> None:
    assert log_false_alarms(300, 60, 4, 1e-4) < math.log(1e-6)
    assert log_false_alarms(300, 20, 7, 0.9) == 0.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: VerifyOptions("essential"),  # type: ignore[arg-type]
        lambda: VerifyOptions(threshold_px=0.0),
        lambda: VerifyOptions(threshold_px=1e9),
        lambda: VerifyOptions(threshold_px=float("nan")),
        lambda: VerifyOptions("pose"),
        lambda: VerifyOptions(seed=-1),
        lambda: VerifyOptions(seed=2**40),
        lambda: Camera(0, 1, 0, 0),
        lambda: Camera(1, 1, math.inf, 0),
    ],
)
def test_senseless_options_are_refused(make: object) -> None:
    with pytest.raises(InvalidParameter):
        make()  # type: ignore[operator]
