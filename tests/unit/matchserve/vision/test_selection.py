"""Choosing the keypoints that are found again."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from matchserve.errors import InvalidParameter
from matchserve.types import UInt8
from matchserve.vision.decode import from_array
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.selection import SPREAD_PX, candidate_count, is_best_nearby

CHOSEN = 400


def best_nearby(*points: tuple[float, float, float]) -> list[bool]:
    """Say which points (x, y, score) of an image of 40 x 30 pixels are the best nearby."""
    rows = np.array(points)
    return [bool(best) for best in is_best_nearby(rows[:, :2], rows[:, 2], (30, 40))]


def test_a_keypoint_gives_way_to_a_better_one_nearby() -> None:
    best = best_nearby((10, 10, 3.0), (11, 11, 2.0), (12, 10, 2.5), (15, 10, 1.0), (39, 29, 1.0))
    assert best == [True, False, False, True, True]


def test_orientations_of_one_position_are_kept_together() -> None:
    assert best_nearby((10, 10, 3.0), (10, 10, 3.0), (10, 11, 2.0)) == [True, True, False]


def test_positions_beyond_the_border_count_as_on_it() -> None:
    assert all(best_nearby((-0.4, -0.4, 1.0), (39.4, 29.4, 1.0)))


def test_repeatable_keypoints_are_sorted_and_as_many(grey_photograph: UInt8) -> None:
    image = from_array(grey_photograph)
    options = DetectOptions(CHOSEN, selection="repeatable", further_orientations=0)
    found, again = detect(image, options), detect(image, options)
    assert len(found) == CHOSEN
    assert len(np.unique(np.column_stack([found.xy, found.sigma]), axis=0)) == CHOSEN
    np.testing.assert_array_equal(found.xy, again.xy)
    strongest = detect(image, DetectOptions(max_keypoints=CHOSEN, selection="contrast"))
    assert np.median(found.sigma) > np.median(strongest.sigma)


def test_near_keypoints_come_last_and_only_to_fill_the_number(grey_photograph: UInt8) -> None:
    image = from_array(grey_photograph)
    one_orientation = DetectOptions(CHOSEN, further_orientations=0)
    few = detect(image, one_orientation)
    distance = np.linalg.norm(few.xy[:, None] - few.xy[None], axis=2) + 99 * np.eye(CHOSEN)
    assert distance.min() > SPREAD_PX - 1
    many = replace(one_orientation, max_keypoints=100_000)
    everything = detect(image, many)
    contrast = detect(image, replace(many, selection="contrast"))
    assert len(everything) == len(contrast)
    falls = np.flatnonzero(np.diff(everything.score) > 0)
    assert len(falls) == 1  # the scores begin again with those that gave way


def test_more_of_the_chosen_keypoints_are_found_again(grey_photograph: UInt8) -> None:
    rng = np.random.default_rng(0)
    smaller = cv2.resize(grey_photograph, None, fx=0.8, fy=0.8, interpolation=cv2.INTER_AREA)
    noisy = np.clip(smaller + rng.normal(0, 4, smaller.shape), 0, 255).astype(np.uint8)

    def found_again(options: DetectOptions) -> float:
        left = detect(from_array(grey_photograph), options).xy
        right = detect(from_array(noisy), options).xy
        moved = (left + 0.5) * 0.8 - 0.5
        distance = np.linalg.norm(moved[:, None] - right[None], axis=2)
        near = distance.argmin(axis=1)
        mutual = distance.argmin(axis=0)[near] == np.arange(len(left))
        return float((mutual & (distance.min(axis=1) < 2)).mean())

    contrast = found_again(DetectOptions(max_keypoints=CHOSEN, selection="contrast"))
    repeatable = found_again(DetectOptions(max_keypoints=CHOSEN, selection="repeatable"))
    assert repeatable > 1.05 * contrast


def test_an_unknown_selection_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="contrast, repeatable"):
        DetectOptions(selection="best")  # type: ignore[arg-type]


def test_a_few_more_candidates_than_wanted() -> None:
    assert candidate_count(2048) == 2560
