"""Keypoints of several matches get one position that agrees with all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matchserve.types import Float32, Keypoints
from matchserve.vision.consistency import RefinedPair, agree, match_weights

COUNT = 50


def _keypoints(xy: NDArray[Any], sigma: float, angle: float = 0.0) -> Keypoints:
    ones = np.ones(len(xy), np.float32)
    return Keypoints(xy.astype(np.float32), sigma * ones, angle * ones, ones)


def _scene(noise: float) -> tuple[dict[str, Keypoints], dict[str, Float32], list[RefinedPair]]:
    """Three images of the same points, at scales 1, 2 and 1, the last one turned by 90 degrees.

    Keypoints are misplaced by `noise` sigmas; refined points correspond exactly to the keypoint of
    the first image of the pair.
    """
    rng = np.random.default_rng(0)
    truth = rng.uniform(0, 400, (COUNT, 2))
    maps = {
        "a": np.eye(2),
        "b": 2 * np.eye(2),
        "c": np.array([[0.0, -1.0], [1.0, 0.0]]),
    }
    angles = {"a": 0.0, "b": 0.0, "c": np.pi / 2}
    sigmas = {"a": 2.0, "b": 4.0, "c": 2.0}
    exact = {name: truth @ linear.T for name, linear in maps.items()}
    error = {name: noise * sigmas[name] * rng.normal(size=(COUNT, 2)) for name in maps}
    keypoints = {
        name: _keypoints(exact[name] + error[name], sigmas[name], angles[name]) for name in maps
    }
    pairs = np.repeat(np.arange(COUNT, dtype=np.int32)[:, None], 2, axis=1)
    matched = []
    for one, other in (("a", "b"), ("b", "c"), ("a", "c")):
        local = maps[other] @ np.linalg.inv(maps[one])
        xy1 = exact[other] + error[one] @ local.T
        matched.append(
            RefinedPair(
                (one, other),
                pairs,
                xy1.astype(np.float32),
                np.tile(local.astype(np.float32), (COUNT, 1, 1)),
                np.ones(COUNT, np.bool_),
                np.ones(COUNT, np.float32),
            )
        )
    return keypoints, {n: e.astype(np.float32) for n, e in exact.items()}, matched


def _disagreement(points: Mapping[str, Float32]) -> float:
    """Mean distance between the points of the other images, mapped back, and those of `a`."""
    b, c = points["b"] / 2, points["c"] @ np.array([[0.0, -1.0], [1.0, 0.0]])
    return float(np.mean([np.linalg.norm(x - points["a"], axis=1) for x in (b, c)]))


def test_points_of_a_track_agree() -> None:
    keypoints, _, matched = _scene(0.3)
    before = _disagreement({name: k.xy for name, k in keypoints.items()})
    found = agree(keypoints, matched)
    assert before > 0.8
    assert _disagreement(found.points) < 0.1 * before
    assert all(agreeing.all() for agreeing in found.agreeing)


def test_the_local_map_of_a_match_carries_the_displacement_of_its_partner() -> None:
    """Maps of another scale than the keypoints say: only with the maps do the points agree."""
    keypoints, _, matched = _scene(0.3)
    turned = {name: replace(k, angle=k.angle + np.float32(1.0)) for name, k in keypoints.items()}
    assert _disagreement(agree(turned, matched).points) < 0.1


def test_exact_keypoints_stay() -> None:
    keypoints, exact, matched = _scene(0.0)
    for name, points in agree(keypoints, matched).points.items():
        np.testing.assert_allclose(points, exact[name], atol=1e-3)


def test_a_wrong_match_hardly_moves_a_point_with_right_ones() -> None:
    keypoints, _, matched = _scene(0.0)
    wrong = matched[2].xy1.copy()
    wrong[0] += 12
    found = agree(keypoints, [*matched[:2], replace(matched[2], xy1=wrong)])
    assert np.linalg.norm(found.points["c"][0] - keypoints["c"].xy[0]) < 0.2
    assert not found.agreeing[2][0]


def test_images_without_refined_matches_keep_their_points_and_matches() -> None:
    keypoints, _, matched = _scene(0.3)
    found = agree(keypoints, [replace(m, is_refined=np.zeros(COUNT, np.bool_)) for m in matched])
    for name, points in found.points.items():
        np.testing.assert_array_equal(points, keypoints[name].xy)
    assert all(agreeing.all() for agreeing in found.agreeing)
    assert agree({}, []).points == {}


def test_matches_of_neighbouring_keypoints_do_not_agree() -> None:
    """Five matches of one pair ask for points that the matches of the third image contradict."""
    keypoints, _, matched = _scene(0.3)
    wrong = matched[0].xy1.copy()
    wrong[:5] += 9.0
    matched[0] = replace(matched[0], xy1=wrong)
    agreeing = agree(keypoints, matched).agreeing
    np.testing.assert_array_equal(agreeing[0], np.arange(COUNT) >= 5)
    assert agreeing[1][5:].all()
    assert agreeing[2][5:].all()


def test_the_tolerance_grows_with_the_pixels_of_the_working_image() -> None:
    """Points of an image that was reduced eight times are exact to eight pixels as sent."""
    keypoints, _, matched = _scene(0.0)
    for pixel, kept in ((1.0, 45), (8.0, COUNT)):
        wrong = matched[0].xy1 + np.float32(3.0) * (np.arange(COUNT) < 5)[:, None]
        pair = replace(matched[0], xy1=wrong.astype(np.float32), pixel=pixel)
        others = [replace(one, pixel=pixel) for one in matched[1:]]
        assert agree(keypoints, [pair, *others]).agreeing[0].sum() == kept


def test_matches_that_were_not_refined_are_dropped_only_where_most_were() -> None:
    keypoints, _, matched = _scene(0.0)
    for refined, kept in ((45, 45), (20, COUNT)):
        pair = replace(matched[0], is_refined=np.arange(COUNT) < refined)
        assert agree(keypoints, [pair]).agreeing[0].sum() == kept


def test_two_keypoints_of_one_image_are_not_connected() -> None:
    """A wrong match connects two tracks; of the matches that could be wrong, the weakest goes."""
    keypoints, _, matched = _scene(0.0)
    crossed, weights = matched[2].pairs.copy(), matched[2].weights.copy()
    crossed[3, 1], crossed[4, 1] = 4, 3
    weights[3:5] = 0.5
    xy1 = keypoints["c"].xy[crossed[:, 1]]
    pair = replace(matched[2], pairs=crossed, xy1=xy1, weights=weights)
    agreeing = agree(keypoints, [*matched[:2], pair]).agreeing
    np.testing.assert_array_equal(np.flatnonzero(~agreeing[2]), [3, 4])
    assert agreeing[0].all()
    assert agreeing[1].all()


def test_matches_far_from_their_epipolar_lines_do_not_agree() -> None:
    """Two matches are refined consistently, but no motion of the camera explains them."""
    rng = np.random.default_rng(1)
    world = np.column_stack([rng.uniform(-2, 2, (200, 2)), rng.uniform(4, 8, 200)])
    left = 500 * world[:, :2] / world[:, 2:] + 300
    right = 500 * (world[:, :2] + [0.7, 0.1]) / (world[:, 2:] + 0.2) + 300
    right[:2, 1] += 6.0
    keypoints = {"a": _keypoints(left, 2.0), "b": _keypoints(right, 2.0)}
    rows = np.repeat(np.arange(200, dtype=np.int32)[:, None], 2, axis=1)
    maps = np.tile(np.eye(2, dtype=np.float32), (200, 1, 1))
    ones = np.ones(200, np.float32)
    pair = RefinedPair(
        ("a", "b"), rows, right.astype(np.float32), maps, ones.astype(np.bool_), ones
    )
    np.testing.assert_array_equal(agree(keypoints, [pair]).agreeing[0], np.arange(200) >= 2)


def test_matches_that_look_alike_count_more() -> None:
    weights = match_weights(np.array([0.9, 0.9, 0.3], np.float32), np.array([0.99, 0.9, 0.99]))
    assert weights[0] > 3 * weights[1]
    assert weights[0] == pytest.approx(3 * weights[2], rel=1e-5)


def test_a_refined_match_outweighs_a_contradicting_one_that_is_not() -> None:
    """Weights of refined matches may be large; one that was not refined never wins."""
    keypoints = {"a": _keypoints(np.zeros((1, 2)), 2.0), "b": _keypoints(np.zeros((2, 2)), 2.0)}
    pair = RefinedPair(
        ("a", "b"),
        np.array([[0, 0], [0, 1]], np.int32),
        np.zeros((2, 2), np.float32),
        np.tile(np.eye(2, dtype=np.float32), (2, 1, 1)),
        np.array([True, False]),
        np.array([0.1, 40.0], np.float32),
    )
    np.testing.assert_array_equal(agree(keypoints, [pair]).agreeing[0], [True, False])
