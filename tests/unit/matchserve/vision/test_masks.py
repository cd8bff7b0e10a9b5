"""Parts of an image that are ignored."""

from __future__ import annotations

import numpy as np
import pytest

from matchserve.errors import InvalidParameter
from matchserve.types import Image, UInt8
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.masks import MAX_CORNERS, MAX_SHAPES, Mask, parse_shapes


@pytest.fixture
def image(photograph: UInt8) -> Image:
    grey = np.ascontiguousarray(photograph[:300, :400].mean(axis=2).astype(np.uint8))
    return Image(grey, (800, 600))  # a working copy of half the size


def test_rectangles_and_polygons_ignore_what_is_inside() -> None:
    triangle = [[0, 0], [10, 0], [0, 10]]
    mask = Mask(parse_shapes([[20, 20, 30, 40], triangle]))
    points = np.array([[25, 30], [19, 30], [25, 41], [2, 2], [9, 9]])
    assert mask.allows(points, (100, 100)).tolist() == [False, True, True, False, True]


def test_a_concave_polygon_is_ignored_by_the_even_odd_rule() -> None:
    notched = [[0, 0], [10, 0], [10, 10], [5, 4], [0, 10]]
    points = np.array([[5, 2], [5, 8], [1, 8]])
    assert Mask(parse_shapes([notched])).allows(points, (20, 20)).tolist() == [False, True, False]


def test_keypoints_are_found_outside_of_the_mask_only(image: Image) -> None:
    """The strongest of what is left, not what is left of the strongest."""
    options = DetectOptions(100, selection="contrast", further_orientations=0)
    mask = Mask(parse_shapes([[0, 0, 800, 300]]))
    masked, free = detect(image, options, mask), detect(image, options)
    assert (free.xy[:, 1] < 300).any()
    assert (masked.xy[:, 1] >= 300).all()
    assert len(masked) == 100
    everything = detect(image, DetectOptions(20_000, selection="contrast", further_orientations=0))
    below = everything[everything.xy[:, 1] >= 300][:100]
    np.testing.assert_array_equal(masked.xy, below.xy)


def test_a_mask_image_of_another_resolution_is_stretched(image: Image) -> None:
    picture = np.full((60, 80), 255, np.uint8)
    picture[:, :40] = 20  # JPEG makes black not quite black
    found = detect(image, DetectOptions(100, further_orientations=0), Mask(image=picture))
    assert len(found) == 100
    assert (found.xy[:, 0] >= 399.5).all()


def test_a_mask_of_another_aspect_ratio_is_refused(image: Image) -> None:
    with pytest.raises(InvalidParameter, match=r"60x80 pixels and the image 800x600"):
        detect(image, None, Mask(image=np.zeros((80, 60), np.uint8)))


@pytest.mark.parametrize(
    "shapes",
    [
        [[1, 2, 3]],
        [[[1, 2], [3, 4]]],
        [["a", 1, 2, 3]],
        [[float("nan"), 0, 1, 1]],
        [[0, 0, 1, 1]] * (MAX_SHAPES + 1),
        [[[0, 0], [1, 0], [1, 1]] * MAX_CORNERS],
    ],
)
def test_wrong_shapes_are_refused(shapes: list[object]) -> None:
    with pytest.raises(InvalidParameter):
        parse_shapes(shapes)


def test_keys_differ_for_different_masks() -> None:
    masks = [
        Mask(),
        Mask(parse_shapes([[0, 0, 1, 1]])),
        Mask(parse_shapes([[0, 0, 1, 2]])),
        Mask(image=np.zeros((2, 3), np.uint8)),
        Mask(image=np.zeros((3, 2), np.uint8)),
    ]
    assert len({mask.key for mask in masks}) == len(masks)
