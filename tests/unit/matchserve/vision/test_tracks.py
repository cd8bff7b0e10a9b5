"""Tracks have at most one keypoint in each image."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from matchserve.vision.tracks import connected_components, unambiguous_matches


def _reached(start: int, edges: list[tuple[int, int]]) -> set[int]:
    """Return the keypoints that can be reached from one, by a plain search."""
    found, waiting = {start}, [start]
    while waiting:
        here = waiting.pop()
        near = {b if a == here else a for a, b in edges if here in (a, b)}
        waiting.extend(near - found)
        found |= near
    return found


EDGES = st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=40)


def _rows(edges: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(edges, np.intp).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


@given(EDGES)
def test_components_are_those_of_a_plain_search(edges: list[tuple[int, int]]) -> None:
    labels = connected_components(*_rows(edges), 20)
    assert labels.tolist() == [min(_reached(number, edges)) for number in range(20)]


@given(EDGES)
def test_no_track_has_two_keypoints_of_an_image_and_no_more_is_dropped_than_needed(
    edges: list[tuple[int, int]],
) -> None:
    """Five images with four keypoints each. Every dropped match contradicts heavier ones."""
    image = np.arange(20) // 4
    edges = [(a, b) for a, b in edges if image[a] != image[b]]
    one, other = _rows(edges)
    weights = np.random.default_rng(len(edges)).permutation(len(edges)).astype(np.float64)
    kept = unambiguous_matches(one, other, image, weights)
    chosen = [edge for edge, is_kept in zip(edges, kept, strict=True) if is_kept]
    for number in range(20):
        track = sorted(_reached(number, chosen))
        assert len({int(image[k]) for k in track}) == len(track)
    for row in np.flatnonzero(~kept):
        heavier = [edge for i, edge in enumerate(edges) if kept[i] and weights[i] > weights[row]]
        track = sorted(_reached(edges[row][0], [*heavier, edges[row]]))
        assert len({int(image[k]) for k in track}) < len(track)


def test_the_heavier_of_two_contradicting_matches_stays() -> None:
    one, other = np.array([0, 0]), np.array([1, 2])
    image = np.array([0, 1, 1])
    for weights, expected in (([0.9, 0.3], [True, False]), ([0.3, 0.9], [False, True])):
        assert unambiguous_matches(one, other, image, np.array(weights)).tolist() == expected
