"""Sub-pixel refinement: known affine maps are found, and wrong matches are left alone."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from matchserve.types import Float64, Image, Keypoints, UInt8
from matchserve.vision.decode import from_array
from matchserve.vision.refine import RefineOptions, refine, refine_some

SHIFTS = ((0.0, 0.0), (0.7, -0.4), (-1.6, 1.1))


def _keypoints(xy: Float64, sigma: float = 3.0, angle: float = 0.0) -> Keypoints:
    count = len(xy)
    ones = np.ones(count, np.float32)
    return Keypoints(xy.astype(np.float32), sigma * ones, angle * ones, ones)


def _warped(grey: UInt8, matrix: Float64) -> Image:
    rows, columns = grey.shape
    return from_array(
        np.asarray(
            cv2.warpAffine(
                grey, matrix, (columns, rows), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT
            ),
            np.uint8,
        )
    )


def _textured_points(grey: UInt8) -> Float64:
    corners = cv2.goodFeaturesToTrack(grey[80:-80, 80:-80], 60, 0.05, 20)
    assert corners is not None
    return corners.reshape(-1, 2).astype(np.float64) + 80


@pytest.mark.parametrize("shift", SHIFTS)
def test_affine_map_is_found_to_a_tenth_of_a_pixel(
    grey_photograph: UInt8, shift: tuple[float, float]
) -> None:
    """Image 1 is turned, scaled and sheared; keypoints know turn and scale, and are misplaced."""
    turn, scale = 0.3, 1.15
    linear = scale * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    linear = linear @ np.array([[1.0, 0.12], [0.0, 0.93]])
    middle = np.array([grey_photograph.shape[1], grey_photograph.shape[0]]) / 2
    matrix = np.column_stack([linear, middle - linear @ middle])
    xy0 = _textured_points(grey_photograph)
    truth = xy0 @ linear.T + matrix[:, 2]
    inside = ((truth > 60) & (truth < np.array(grey_photograph.shape[::-1]) - 60)).all(axis=1)
    xy0, truth = xy0[inside], truth[inside]
    images = (from_array(grey_photograph), _warped(grey_photograph, matrix))
    keypoints = (_keypoints(xy0), _keypoints(truth + np.array(shift), 3.0 * scale, turn))
    found = refine(images, keypoints)
    error = np.linalg.norm(found.xy1 - truth, axis=1)
    assert found.is_refined.mean() > 0.9
    assert np.median(error[found.is_refined]) < 0.1
    affine_error = np.abs(found.affine[found.is_refined] - linear).max(axis=(1, 2))
    assert np.median(affine_error) < 0.05


def test_points_of_large_keypoints_are_aligned_in_a_smaller_window(grey_photograph: UInt8) -> None:
    """A bent surface is flat only in a small window."""
    rows, columns = grey_photograph.shape
    x, y = np.meshgrid(np.arange(columns, dtype=np.float32), np.arange(rows, dtype=np.float32))

    def bent(values: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(values + 6 * np.sin(values / 12))

    # Pixel x of the warped image shows `bent(x)` of the photograph.
    warped = cv2.remap(grey_photograph, bent(x).astype(np.float32), y, cv2.INTER_CUBIC)
    truth = _textured_points(grey_photograph)
    xy0 = np.column_stack([bent(truth[:, 0]), truth[:, 1]])
    inside = (xy0[:, 0] > 60) & (xy0[:, 0] < columns - 60)
    images = (from_array(grey_photograph), from_array(np.asarray(warped, np.uint8)))
    keypoints = (_keypoints(xy0[inside], 8.0), _keypoints(truth[inside], 8.0))
    error = {}
    for cap in (None, 1.6):
        found = refine(images, keypoints, RefineOptions(capped_sigma=cap))
        gap = np.linalg.norm(found.xy1 - truth[inside], axis=1)
        error[cap] = np.median(gap[found.is_refined])
    assert error[1.6] < 0.5 * error[None]


def test_a_cap_above_all_keypoints_changes_nothing(grey_photograph: UInt8) -> None:
    xy0 = _textured_points(grey_photograph)
    image = from_array(grey_photograph)
    pair = (_keypoints(xy0), _keypoints(xy0 + 0.6))
    plain, capped = (
        refine((image, image), pair, RefineOptions(capped_sigma=cap)) for cap in (None, 3.0)
    )
    np.testing.assert_array_equal(plain.xy1, capped.xy1)


def test_gain_and_offset_change_nothing(grey_photograph: UInt8) -> None:
    xy0 = _textured_points(grey_photograph)
    image0 = from_array(grey_photograph)
    darker = from_array((40 + 0.5 * grey_photograph).astype(np.uint8))
    moved = _keypoints(xy0 + np.array([0.8, 0.5]))
    found = refine((image0, darker), (_keypoints(xy0), moved))
    error = np.linalg.norm(found.xy1 - xy0, axis=1)
    assert found.is_refined.mean() > 0.9
    assert np.median(error) < 0.1


def test_points_of_unrelated_patches_are_not_moved(grey_photograph: UInt8) -> None:
    xy0 = _textured_points(grey_photograph)
    wrong = np.roll(xy0, 7, axis=0)
    image = from_array(grey_photograph)
    found = refine((image, image), (_keypoints(xy0), _keypoints(wrong)))
    assert found.is_refined.mean() < 0.2
    left_alone = ~found.is_refined
    np.testing.assert_array_equal(found.xy1[left_alone], wrong.astype(np.float32)[left_alone])


def test_correlation_limit_is_respected(grey_photograph: UInt8) -> None:
    xy0 = _textured_points(grey_photograph)
    image = from_array(grey_photograph)
    pair = (_keypoints(xy0), _keypoints(xy0))
    assert refine((image, image), pair).is_refined.all()
    assert not refine((image, image), pair, RefineOptions(min_correlation=1.01)).is_refined.any()


def test_some_matches_are_refined_as_if_alone(grey_photograph: UInt8) -> None:
    xy0 = _textured_points(grey_photograph)
    image = from_array(grey_photograph)
    pair = (_keypoints(xy0), _keypoints(xy0 + 0.6))
    chosen = np.arange(len(xy0)) % 2 == 0
    every, some = refine((image, image), pair), refine_some((image, image), pair, chosen)
    np.testing.assert_allclose(some.xy1[chosen], every.xy1[chosen], atol=1e-3)
    np.testing.assert_array_equal(some.xy1[~chosen], pair[1].xy[~chosen])
    assert not some.is_refined[~chosen].any()
    assert (some.correlation[~chosen] == 0).all()


def test_no_match_is_no_error(grey_photograph: UInt8) -> None:
    image, none = from_array(grey_photograph), _keypoints(np.zeros((0, 2)))
    found = refine((image, image), (none, none))
    assert found.xy1.shape == (0, 2)
    assert found.affine.shape == (0, 2, 2)
