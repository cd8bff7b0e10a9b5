"""Agreement of neighbouring matches, against loops."""

from __future__ import annotations

import numpy as np

from matchserve.types import Float32, Keypoints
from matchserve.vision.agreement import (
    NEIGHBOURS,
    TOLERANCES,
    consensus,
    neighbourhood,
    similarities,
)


def _scene(count: int = 60, seed: int = 0) -> tuple[Float32, Float32, Float32]:
    """Points under one similarity, a quarter of them wrong; returns both points and the maps."""
    rng = np.random.default_rng(seed)
    xy0 = rng.uniform(0, 300, (count, 2)).astype(np.float32)
    linear = np.array([[1.2, -0.4], [0.4, 1.2]], np.float32)
    xy1 = xy0 @ linear.T + np.array([20, -10], np.float32)
    xy1[::4] = rng.uniform(0, 300, (len(xy1[::4]), 2))
    return xy0, xy1.astype(np.float32), np.tile(linear, (count, 1, 1))


def test_agreement_equals_a_loop() -> None:
    xy0, xy1, maps = _scene()
    near = neighbourhood((xy0, xy1), maps)
    assert near.index.shape == (60, 2 * NEIGHBOURS)
    for i in range(0, 60, 7):
        for side, xy in enumerate((xy0, xy1)):
            order = np.argsort(np.linalg.norm(xy - xy[i], axis=1))[1 : NEIGHBOURS + 1]
            own = near.index[i, side * NEIGHBOURS : (side + 1) * NEIGHBOURS]
            assert set(own.tolist()) == set(order.tolist())
        for column, j in enumerate(near.index[i]):
            step0, step1 = xy0[j] - xy0[i], xy1[j] - xy1[i]
            reach = (np.linalg.norm(step1) + np.linalg.norm(maps[i] @ step0)) / 2 + 2
            error = max(np.linalg.norm(m @ step0 - step1) for m in (maps[i], maps[j])) / reach
            expected = np.exp(-((error / np.array(TOLERANCES)) ** 2))
            np.testing.assert_allclose(near.agreement[:, i, column], expected, atol=1e-4)


def test_right_matches_agree_more_than_wrong_ones() -> None:
    xy0, xy1, maps = _scene()
    sums = neighbourhood((xy0, xy1), maps).sums(np.ones(60, np.float32))
    is_wrong = np.arange(60) % 4 == 0
    assert sums[~is_wrong, 0].min() > sums[is_wrong, 0].max()


def test_few_matches_have_no_neighbours() -> None:
    for count in (0, 1, 2):
        xy0, xy1, maps = _scene(count)
        near = neighbourhood((xy0, xy1), maps)
        assert near.sums(np.ones(count, np.float32)).shape == (count, 2 * len(TOLERANCES))


def test_matches_at_one_place_do_not_support_each_other() -> None:
    place = np.full((40, 2), 17.5, np.float32)
    near = neighbourhood((place, place), np.tile(np.eye(2, dtype=np.float32), (40, 1, 1)))
    assert near.index.shape == (40, 2 * NEIGHBOURS)
    assert (near.sums(np.ones(40, np.float32)) == 0).all()


def test_consensus_is_the_share_of_matches_that_turn_and_scale_alike() -> None:
    turn = np.array([0.5] * 8 + [2.5] * 2, np.float32)
    scale = np.zeros(10, np.float32)
    share = consensus(turn, scale, np.ones(10, np.float32))
    np.testing.assert_allclose(share, [0.8] * 8 + [0.2] * 2, atol=1e-6)
    full_turn = consensus(turn + 2 * np.pi, scale, np.ones(10, np.float32))
    np.testing.assert_allclose(full_turn, share, atol=1e-6)


def test_similarity_maps_an_offset_of_the_first_keypoint() -> None:
    one, other = (
        Keypoints(np.zeros((1, 2), np.float32), *np.array([[sigma], [angle], [1]], np.float32))
        for sigma, angle in ((2.0, 0.0), (4.0, np.pi / 2))
    )
    np.testing.assert_allclose(similarities(one, other)[0] @ [1, 0], [0, 2], atol=1e-6)
