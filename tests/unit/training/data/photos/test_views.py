"""Synthetic views: repeatable, and geometrically what they say."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from skimage import data as samples

from matchserve.types import Image, Keypoints
from matchserve.vision.keypoints import DetectOptions, detect
from training.data.photos.correspondence import (
    Tolerance,
    angle_between,
    correspond,
    distinct,
    near_pairs,
    transfer,
)
from training.data.photos.relight import relight
from training.data.photos.views import (
    LEVELS,
    render,
    split_view_name,
    view_name,
    warp,
)
from training.errors import DataError


@pytest.fixture(scope="module")
def camera() -> np.ndarray:
    return np.asarray(cv2.resize(samples.camera(), (320, 256), interpolation=cv2.INTER_AREA))


def keypoints(rows: list[tuple[float, float, float, float]]) -> Keypoints:
    array = np.array(rows, np.float32)
    return Keypoints(array[:, :2], array[:, 2], array[:, 3], np.ones(len(rows), np.float32))


def test_a_view_depends_on_seed_name_and_index_alone(camera: np.ndarray) -> None:
    first = render(camera, "a.jpg", 2, seed=7, level="hard")
    render(camera, "b.jpg", 1, seed=7, level="easy")
    again = render(camera, "a.jpg", 2, seed=7, level="hard")
    assert np.array_equal(first.grey, again.grey)
    assert np.array_equal(first.homography, again.homography)
    for other in (("b.jpg", 2, 7), ("a.jpg", 3, 7), ("a.jpg", 2, 8)):
        name, index, seed = other
        assert not np.array_equal(
            first.grey, render(camera, name, index, seed=seed, level="hard").grey
        )


def test_the_homography_maps_the_picture_as_drawn() -> None:
    grey = np.full((200, 240), 60, np.uint8)
    spot = np.array([150.0, 90.0])
    cv2.circle(grey, (150, 90), 5, (220,), -1)
    view = render(grey, "spot", 1, seed=3, level="medium")
    drawn = warp(grey, view.homography).astype(np.float64) - 60
    drawn[drawn < 40] = 0
    y, x = np.mgrid[: drawn.shape[0], : drawn.shape[1]]
    centre = np.array([(x * drawn).sum(), (y * drawn).sum()]) / drawn.sum()
    expected = view.homography @ [*spot, 1]
    assert np.allclose(centre, expected[:2] / expected[2], atol=0.6)


@pytest.mark.parametrize("level", LEVELS)
def test_levels_change_the_light_more_as_they_get_harder(camera: np.ndarray, level: str) -> None:
    options = LEVELS[level]
    change = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        shown = relight(camera, rng, strength=options.light, is_night=options.is_night)
        assert shown.shape == camera.shape
        assert shown.dtype == np.uint8
        change.append(np.abs(shown.astype(float) - camera).mean())
    expected = {"easy": (3, 45), "medium": (15, 70), "hard": (25, 90), "night": (40, 130)}
    low, high = expected[level]
    assert low < np.mean(change) < high


def test_no_strength_changes_next_to_nothing(camera: np.ndarray) -> None:
    shown = relight(camera, np.random.default_rng(0), strength=0.0)
    assert np.abs(shown.astype(float) - camera).mean() < 2.0


def test_view_names_survive_marks_in_file_names() -> None:
    assert split_view_name(view_name("a#b.jpg", 3)) == ("a#b.jpg", 3)
    assert split_view_name(view_name("a#b.jpg", 0)) == ("a#b.jpg", 0)
    assert view_name("x.jpg", 0) == "x.jpg"


def test_an_unknown_level_is_refused() -> None:
    from training.data.photos.build import PhotoOptions

    with pytest.raises(DataError, match="easy, medium, hard, night; got dusk"):
        PhotoOptions(levels=("dusk",))


def test_transfer_is_exact_for_a_similarity() -> None:
    turn, scale = np.radians(30), 1.5
    c, s = scale * np.cos(turn), scale * np.sin(turn)
    matrix = np.array([[c, -s, 4.0], [s, c, -2.0], [0, 0, 1]])
    moved = transfer(keypoints([(10, 20, 2, 0.4)]), matrix)
    assert np.allclose(moved.xy, [[c * 10 - s * 20 + 4, s * 10 + c * 20 - 2]], atol=1e-4)
    assert moved.sigma[0] == pytest.approx(3.0, rel=1e-5)
    assert moved.angle[0] == pytest.approx(0.4 + turn, abs=1e-5)


def test_transfer_of_a_perspective_map_agrees_with_finite_differences() -> None:
    matrix = np.array([[1.1, 0.2, 3.0], [-0.1, 0.9, 5.0], [4e-4, -3e-4, 1.0]])
    moved = transfer(keypoints([(80, 60, 1, 1.1)]), matrix)

    def place(x: float, y: float) -> np.ndarray:
        w = matrix @ [x, y, 1]
        return np.asarray(w[:2] / w[2])

    step = 1e-4
    ahead = place(80 + step * np.cos(1.1), 60 + step * np.sin(1.1)) - place(80, 60)
    assert moved.angle[0] == pytest.approx(np.arctan2(ahead[1], ahead[0]), abs=1e-3)
    dx, dy = place(80 + step, 60) - place(80, 60), place(80, 60 + step) - place(80, 60)
    area = abs(dx[0] * dy[1] - dx[1] * dy[0]) / step**2
    assert moved.sigma[0] == pytest.approx(np.sqrt(area), rel=1e-3)


def test_correspond_takes_the_best_fit_and_each_keypoint_once() -> None:
    left = keypoints([(50, 50, 2, 0), (50, 50, 2, 3.0), (10, 10, 1, 0)])
    right = keypoints([(50.5, 50, 2, 0.1), (51.5, 50, 2, 0.1), (50, 50.2, 2, 3.1), (90, 90, 1, 0)])
    pairs = correspond(left, right, Tolerance(1.0, 0.5, 30.0))
    assert sorted(map(tuple, pairs.tolist())) == [(0, 0), (1, 2)]


@pytest.mark.parametrize(
    ("other", "fits"),
    [
        ((51.9, 50, 2, 0), True),
        ((52.1, 50, 2, 0), False),
        ((50, 50, 2.8, 0), True),
        ((50, 50, 2.9, 0), False),
        ((50, 50, 2, 2 * np.pi - 0.5), True),
        ((50, 50, 2, 0.6), False),
    ],
)
def test_tolerances_are_in_sigmas_octaves_and_degrees(
    other: tuple[float, float, float, float], fits: bool
) -> None:
    pairs = correspond(keypoints([(50, 50, 2, 0)]), keypoints([other]), Tolerance(1.0, 0.5, 30.0))
    assert len(pairs) == int(fits)


def test_correspond_agrees_with_brute_force(camera: np.ndarray) -> None:
    view = render(camera, "x", 1, seed=1, level="easy")
    left = transfer(_detect(camera), view.homography)
    right = _detect(view.grey)
    tolerance = Tolerance()
    misfit = np.full((len(left), len(right)), np.inf)
    for i in range(len(left)):
        sigma = np.sqrt(left.sigma[i] * right.sigma)
        place = np.linalg.norm(left.xy[i] - right.xy, axis=1) / (tolerance.position * sigma)
        scale = np.abs(np.log2(left.sigma[i] / right.sigma)) / tolerance.scale
        angle = angle_between(left.angle[i], right.angle) / np.radians(tolerance.angle_deg)
        misfit[i] = np.maximum(np.maximum(place, scale), angle)
    mutual = {
        (i, int(j))
        for i, j in enumerate(misfit.argmin(axis=1))
        if misfit[i, j] <= 1 and misfit[:, j].argmin() == i
    }
    found = {(int(i), int(j)) for i, j in correspond(left, right, tolerance)}
    assert len(mutual) > 50
    assert len(found ^ mutual) <= 0.02 * len(mutual)


def test_distinct_keeps_the_strongest_of_a_cluster() -> None:
    cluster = keypoints([(50, 50, 2, 0), (50.3, 50, 2, 0.05), (50, 50, 2, 1.5), (70, 50, 2, 0)])
    rule = Tolerance(0.5, 0.3, 15)
    assert distinct(cluster, rule).tolist() == [True, False, True, True]
    assert near_pairs(cluster, rule).tolist() == [[0, 1]]


def _detect(grey: np.ndarray) -> Keypoints:
    image = Image(grey, (grey.shape[1], grey.shape[0]))
    return detect(image, DetectOptions(max_keypoints=400))
