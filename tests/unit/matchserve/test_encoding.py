from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import orjson
import pytest

from matchserve import (
    Features,
    Keypoints,
    Matcher,
    Matches,
    MatchResult,
    Options,
    Verification,
    VerifyOptions,
)
from matchserve.drawing import INLIER_RAMP, caption, draw_matches, png_bytes
from matchserve.encoding import (
    features_from_npz,
    features_npz,
    npz_bytes,
    read_features,
    result_json,
    result_npz,
)
from matchserve.errors import InvalidParameter, MissingInput
from matchserve.types import UInt8
from matchserve.vision.decode import decode_colour


@pytest.fixture(scope="module")
def result(pattern_pair: tuple[UInt8, UInt8, object]) -> MatchResult:
    first, second, _ = pattern_pair
    return Matcher("rootsift").match(first, second, Options(verify=VerifyOptions("homography")))


def test_json_has_the_documented_fields(result: MatchResult) -> None:
    fields = orjson.loads(result_json(result))
    assert set(fields) == {
        "model", "coordinate_convention", "image0", "image1", "keypoints0", "keypoints1",
        "matches", "scores", "confidence", "points0", "points1", "refined", "affine",
        "inliers", "geometry", "orientation", "same_scene", "notes", "distances", "truncated",
        "views", "guided", "timings_ms",
    }  # fmt: skip
    assert fields["image0"] == {
        "width": 480, "height": 360, "working_width": 480, "working_height": 360,
    }  # fmt: skip
    assert fields["notes"] == []
    np.testing.assert_allclose(fields["keypoints0"], result.features0.keypoints.xy, rtol=1e-6)
    np.testing.assert_allclose(fields["keypoints1"], result.features1.keypoints.xy, rtol=1e-6)
    np.testing.assert_allclose(fields["scores"], result.matches.score, rtol=1e-6)
    assert fields["same_scene"] == result.same_scene
    assert fields["same_scene"] > 0.9
    np.testing.assert_array_equal(fields["matches"], result.matches.pairs)
    assert len(fields["scores"]) == len(fields["inliers"]) == len(fields["matches"])
    assert fields["geometry"]["inliers"] == sum(fields["inliers"]) == result.inlier_count
    assert np.array(fields["geometry"]["matrix"]).shape == (3, 3)


def test_json_of_nothing_found() -> None:
    flat = np.zeros((64, 64), np.uint8)
    fields = orjson.loads(result_json(Matcher("rootsift").match(flat, flat)))
    assert fields["matches"] == fields["keypoints0"] == []
    assert fields["geometry"]["matrix"] is None


def test_json_carries_the_pose_when_there_is_one(result: MatchResult) -> None:
    pose = np.column_stack([np.eye(3), [0.0, 0.6, 0.8]])
    posed = Verification("pose", np.eye(3), result.verification.inliers, 1.0, pose)
    fields = orjson.loads(result_json(dataclasses.replace(result, verification=posed)))
    np.testing.assert_array_equal(fields["geometry"]["pose"], pose)


def test_npz_needs_no_pickle(result: MatchResult) -> None:
    with np.load(io.BytesIO(result_npz(result)), allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["matches"], result.matches.pairs)
        np.testing.assert_array_equal(arrays["distances"], result.matches.distance)
        np.testing.assert_array_equal(arrays["keypoints1"], result.features1.keypoints.xy)
        np.testing.assert_array_equal(arrays["geometry_matrix"], result.verification.matrix)
        assert np.isnan(arrays["geometry_pose"]).all()
        assert arrays["same_scene"] == result.same_scene
        assert str(arrays["model"]) == "rootsift"
        assert arrays["image_size0"].tolist() == [480, 360]


def test_features_come_back_as_they_were(result: MatchResult, tmp_path: Path) -> None:
    path = tmp_path / "features.npz"
    path.write_bytes(features_npz(result.features0))
    back = read_features(path)
    np.testing.assert_array_equal(back.descriptors, result.features0.descriptors)
    np.testing.assert_array_equal(back.keypoints.sigma, result.features0.keypoints.sigma)
    assert (back.model, back.size) == ("rootsift", (480, 360))
    matcher = Matcher("rootsift")
    again = matcher.match_features(back, result.features1)
    expected = matcher.match_features(result.features0, result.features1)
    np.testing.assert_array_equal(again.matches.pairs, expected.matches.pairs)


GOOD = {
    "model": np.array("m"),
    "image_size": np.array([10, 10]),
    "keypoints": np.zeros((3, 2)),
    "descriptors": np.eye(3, 8, dtype=np.float32),
}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\3\4 not an archive",
        npz_bytes({k: v for k, v in GOOD.items() if k != "descriptors"}),
        npz_bytes({**GOOD, "keypoints": np.zeros((4, 2))}),
        npz_bytes({**GOOD, "image_size": np.array([1, 2, 3])}),
        npz_bytes({**GOOD, "descriptors": np.full((3, 8), np.nan, np.float32)}),
        npz_bytes({**GOOD, "descriptors": 5 * np.eye(3, 8, dtype=np.float32)}),
        npz_bytes({**GOOD, "descriptors": np.array([["a"] * 8] * 3)}),
        npz_bytes({**GOOD, "scales": np.array([object()] * 3)}),
    ],
)
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidParameter):
        features_from_npz(data)


def test_the_good_ones_pass() -> None:
    assert len(features_from_npz(npz_bytes(GOOD))) == 3


def test_missing_features_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match=r"none\.npz"):
        read_features(tmp_path / "none.npz")


def test_the_picture_shows_both_images_and_says_what_was_found(
    result: MatchResult, pattern_pair: tuple[UInt8, UInt8, object]
) -> None:
    colours = [np.repeat(p[:, :, None], 3, axis=2) for p in pattern_pair[:2]]
    picture = draw_matches(colours[0], colours[1], result)
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    headline, detail = caption(result)
    assert str(result.inlier_count) in headline
    assert "rootsift" in detail
    # Colour appears only where matches were drawn: the images are grey.
    colourful = np.ptp(picture[60:].astype(int), axis=2) > 40
    assert colourful.sum() > 1000
    decoded = decode_colour(png_bytes(picture), max_side=5000)
    np.testing.assert_array_equal(decoded, picture)


def test_dots_are_where_the_points_are_and_colours_follow_the_scores() -> None:
    """Three matches on black pictures of half the sent size, drawn and measured."""
    xy0 = np.array([[40.0, 60.0], [200.0, 100.0], [120.0, 180.0]], np.float32)
    xy1 = xy0 + np.array([30.0, 10.0], np.float32)
    ones = np.ones(3, np.float32)
    rows = np.eye(3, 8, dtype=np.float32)
    sides = [Features(Keypoints(p, ones, ones, ones), rows, "m", (320, 240)) for p in (xy0, xy1)]
    pairs = np.array([[0, 0], [1, 1], [2, 2]], np.int32)
    matches = Matches(pairs, np.zeros(3, np.float32), np.array([0.1, 0.5, 0.9], np.float32))
    seen = MatchResult(
        sides[0], sides[1], matches, Verification("none", None, np.zeros(3, np.bool_), 0.0)
    )
    black = np.zeros((120, 160, 3), np.uint8)
    picture = draw_matches(black, black, seen).astype(int)
    scale = 640 / 240
    left = 8 + round(320 * scale)
    weak, _, strong = INLIER_RAMP[0], None, INLIER_RAMP[-1]
    for points, offset in ((xy0, 0), (xy1, left)):
        for row, colour in ((0, weak), (2, strong)):
            x, y = (points[row] + 0.5) * scale - 0.5 + np.array([offset, 56])
            near = np.abs(picture - np.array(colour)).sum(axis=2) < 12
            v, u = np.nonzero(near[int(y) - 4 : int(y) + 6, int(x) - 4 : int(x) + 6])
            assert len(u) >= 5
            assert u.mean() + int(x) - 4 == pytest.approx(x, abs=0.6)
            assert v.mean() + int(y) - 4 == pytest.approx(y, abs=0.6)


def test_a_picture_without_matches_can_be_drawn() -> None:
    flat = np.zeros((64, 64, 3), np.uint8)
    nothing = Matcher("rootsift").match(flat, flat, Options(verify=VerifyOptions("none")))
    picture = draw_matches(flat, flat, nothing)
    assert "0 matches" in caption(nothing)[0]
    assert picture.shape[0] > 600
