"""Keypoints of several matches get one position that agrees with all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from matchserve.types import Float32, Keypoints
from matchserve.vision.consistency import RefinedPair, agreeing_matches, consistent_points

COUNT = 50


def _keypoints(xy: Float32, sigma: float, angle: float = 0.0) -> Keypoints:
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
    ones = np.ones(COUNT, np.float32)
    matched = []
    for one, other in (("a", "b"), ("b", "c"), ("a", "c")):
        local = maps[other] @ np.linalg.inv(maps[one])
        xy1 = exact[other] + error[one] @ local.T
        matched.append(
            RefinedPair((one, other), pairs, xy1.astype(np.float32), ones.astype(np.bool_), ones)
        )
    return keypoints, {n: e.astype(np.float32) for n, e in exact.items()}, matched


def _disagreement(points: dict[str, Float32]) -> float:
    """Mean distance between the points of the other images, mapped back, and those of `a`."""
    b, c = points["b"] / 2, points["c"] @ np.array([[0.0, -1.0], [1.0, 0.0]])
    return float(np.mean([np.linalg.norm(x - points["a"], axis=1) for x in (b, c)]))


def test_points_of_a_track_agree() -> None:
    keypoints, _, matched = _scene(0.3)
    before = _disagreement({name: k.xy for name, k in keypoints.items()})
    after = _disagreement(consistent_points(keypoints, matched))
    assert before > 0.8
    assert after < 0.1 * before


def test_exact_keypoints_stay() -> None:
    keypoints, exact, matched = _scene(0.0)
    moved = consistent_points(keypoints, matched)
    for name, points in moved.items():
        np.testing.assert_allclose(points, exact[name], atol=1e-3)


def test_a_wrong_match_hardly_moves_a_point_with_right_ones() -> None:
    keypoints, _, matched = _scene(0.0)
    wrong = matched[2].xy1.copy()
    wrong[0] += 12
    bad = RefinedPair(
        ("a", "c"), matched[2].pairs, wrong, matched[2].is_refined, matched[2].weights
    )
    moved = consistent_points(keypoints, [*matched[:2], bad])
    assert np.linalg.norm(moved["c"][0] - keypoints["c"].xy[0]) < 0.2


def test_images_without_refined_matches_keep_their_points() -> None:
    keypoints, _, matched = _scene(0.3)
    none = [
        RefinedPair(m.images, m.pairs, m.xy1, np.zeros(COUNT, np.bool_), m.weights) for m in matched
    ]
    for name, points in consistent_points(keypoints, none).items():
        np.testing.assert_array_equal(points, keypoints[name].xy)
    assert consistent_points({}, []) == {}


def test_matches_of_neighbouring_keypoints_do_not_agree() -> None:
    """Five matches of one pair ask for points that the matches of the third image contradict."""
    keypoints, _, matched = _scene(0.3)
    wrong = matched[0].xy1.copy()
    wrong[:5] += 9.0
    matched[0] = replace(matched[0], xy1=wrong)
    points = consistent_points(keypoints, matched)
    agreeing = [agreeing_matches(keypoints, points, pair) for pair in matched]
    np.testing.assert_array_equal(agreeing[0], np.arange(COUNT) >= 5)
    assert agreeing[1][5:].all()
    assert agreeing[2][5:].all()


def test_matches_that_were_not_refined_are_dropped_only_where_most_were() -> None:
    keypoints, _, matched = _scene(0.0)
    points = {name: found.xy for name, found in keypoints.items()}
    for refined, kept in ((45, 45), (20, COUNT)):
        pair = replace(matched[0], is_refined=np.arange(COUNT) < refined)
        assert agreeing_matches(keypoints, points, pair).sum() == kept
