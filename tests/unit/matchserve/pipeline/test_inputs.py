"""Images with a mask, or with points of their own, through the matcher."""

from __future__ import annotations

import numpy as np
import pytest

from matchserve import GivenPoints, ImageInput, Limits, Mask, Matcher, parse_shapes
from matchserve.errors import InvalidParameter
from matchserve.feature_cache import FeatureCache
from matchserve.types import UInt8
from tests.conftest import encoded


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher("rootsift", cache=FeatureCache(1 << 24))


@pytest.fixture(scope="module")
def png(photograph: UInt8) -> bytes:
    return encoded(photograph[:256, :256], "PNG")


def test_a_mask_applies_to_one_image(matcher: Matcher, png: bytes) -> None:
    left = Mask(parse_shapes([[0, 0, 127.5, 256]]))
    result = matcher.match(ImageInput(png, mask=left), png)
    points0, points1 = result.points()
    assert len(points0) > 20
    assert (result.features0.keypoints.xy[:, 0] >= 127).all()
    assert (result.features1.keypoints.xy[:, 0] < 127).any()
    np.testing.assert_allclose(points0, points1, atol=0.5)


def test_masks_do_not_share_cached_features(matcher: Matcher, png: bytes) -> None:
    shapes = ([[0, 0, 128, 256]], [[128, 0, 256, 256]])
    counts = [
        (matcher.features(ImageInput(png, Mask(parse_shapes(s)))).keypoints.xy[:, 0] < 127).sum()
        for s in shapes
    ]
    assert counts[0] == 0
    assert counts[1] > 0


def test_given_points_are_described_in_their_order(matcher: Matcher, png: bytes) -> None:
    found = matcher.features(png)
    some = found.keypoints[np.array([7, 3, 11])]
    given = GivenPoints(some.xy, some.sigma, some.angle)
    described = matcher.features(ImageInput(png, points=given))
    np.testing.assert_array_equal(described.keypoints.xy, some.xy)
    np.testing.assert_allclose(described.descriptors, found.descriptors[[7, 3, 11]], atol=1e-5)
    assert not described.truncated
    assert found.truncated == (len(found) >= 2048)


def test_given_points_are_limited(png: bytes) -> None:
    matcher = Matcher("rootsift", limits=Limits(max_keypoints=10_000))
    given = GivenPoints(np.zeros((10_001, 2), np.float32))
    with pytest.raises(InvalidParameter, match="given keypoints is 10001, at most 10000"):
        matcher.features(ImageInput(png, points=given))


def test_a_mask_and_points_contradict_each_other(png: bytes) -> None:
    with pytest.raises(InvalidParameter, match="either a mask or given keypoints"):
        ImageInput(png, Mask(), GivenPoints(np.zeros((1, 2), np.float32)))
