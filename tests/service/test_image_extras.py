"""Masks, ignored shapes and given keypoints over HTTP, and details of keypoints."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import httpx
import numpy as np
import pytest

from matchserve import GivenPoints, ImageInput, Mask, Matcher, Options, parse_shapes
from tests.conftest import encoded

Pair = dict[str, bytes]
LEFT = [[-1, -1, 199.5, 361]]  # the pixels that are dark in the mask below


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def archive(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def left_half_dark() -> bytes:
    mask = np.full((180, 200), 255, np.uint8)
    mask[:, :100] = 0
    return encoded(mask, "PNG")


def test_shapes_and_masks_hide_parts_of_one_image(http: httpx.Client, pair: Pair) -> None:
    matcher = Matcher("rootsift")
    mask = Mask(parse_shapes(LEFT))
    expected = matcher.match(
        ImageInput(pair["image0"], mask), pair["image1"], Options(max_side=2048)
    )
    form = http.post("/v1/match", files=pair, data={"ignore0": json.dumps(LEFT)}).json()
    body = {name: b64(data) for name, data in pair.items()}
    as_json = http.post("/v1/match", json={**body, "ignore0": LEFT}).json()
    by_file = http.post("/v1/match", files={**pair, "mask0": left_half_dark()}).json()
    by_text = http.post("/v1/match", json={**body, "mask0": b64(left_half_dark())}).json()
    for answer in (form, as_json, by_file, by_text):
        np.testing.assert_allclose(answer["keypoints0"], expected.features0.keypoints.xy, atol=1e-3)
        np.testing.assert_array_equal(answer["matches"], expected.matches.pairs)
    assert min(x for x, _ in form["keypoints1"]) < 200


def test_the_same_points_are_described_by_library_form_and_json(
    http: httpx.Client, jpeg: bytes
) -> None:
    points = np.array([[30.5, 40], [200, 300], [100, 100]], np.float32)
    expected = Matcher("rootsift").features(ImageInput(jpeg, points=GivenPoints(points)))
    sent: dict[str, Any] = {"keypoints": points.tolist()}
    archive = io.BytesIO()
    np.savez(archive, keypoints=points)
    bodies = [
        http.post("/v1/features", json={"image": b64(jpeg), "keypoints": sent}),
        http.post("/v1/features", files={"image": jpeg, "keypoints": json.dumps(sent)}),
        http.post("/v1/features", files={"image": jpeg, "keypoints": archive.getvalue()}),
    ]
    for answer in bodies:
        body = answer.json()
        np.testing.assert_array_equal(body["keypoints"], points)
        np.testing.assert_allclose(body["descriptors"], expected.descriptors, atol=1e-5)
        assert body["truncated"] is False


def test_details_are_the_same_in_json_npz_and_features(http: httpx.Client, pair: Pair) -> None:
    plain = http.post("/v1/match", files=pair).json()
    assert "scales0" not in plain
    detailed = http.post("/v1/match", files=pair, data={"details": "true"}).json()
    accept = {"Accept": "application/x-npz"}
    data = http.post("/v1/match", files=pair, data={"details": "true"}, headers=accept).content
    with np.load(io.BytesIO(data)) as arrays:
        for name in ("scales1", "orientations1", "keypoint_scores1", "distances"):
            np.testing.assert_allclose(arrays[name], detailed[name], rtol=1e-5)
        assert arrays["working_size0"].tolist() == [400, 360]
        assert bool(arrays["truncated"]) == detailed["truncated"]
        assert set(arrays["timing_stages"]) >= {"match", "total"}
    features = http.post("/v1/features", files={"image": pair["image1"]}).json()
    np.testing.assert_allclose(features["scales"], detailed["scales1"], rtol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ignore0": "[[1,2]]"}, "ignore0"),
        ({"ignore0": "not json"}, "ignore0"),
        ({"ignore0": json.dumps([[0, 0, 1, 1]] * 65)}, "ignore0"),
        ({"max_distance": "0"}, "max_distance"),
    ],
)
def test_wrong_fields_are_named(
    http: httpx.Client, pair: Pair, fields: dict[str, str], message: str
) -> None:
    answer = http.post("/v1/match", files=pair, data=fields)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(message)


def test_wrong_files_are_named(http: httpx.Client, pair: Pair) -> None:
    tall = encoded(np.zeros((200, 50), np.uint8), "PNG")
    many = json.dumps({"keypoints": [[1, 1]] * 8193})
    outside = json.dumps({"keypoints": [[5000, 1]]})
    for files, status, message in (
        ({"mask0": tall}, 422, "the mask has 50x200 pixels and the image 400x360"),
        ({"mask1": b"no image"}, 415, "mask of image1: "),
        ({"keypoints0": many}, 422, "keypoints0: the number of keypoints is 8193"),
        ({"keypoints1": outside}, 422, "keypoint 0 is outside"),
        ({"keypoints1": b"PK-not-a-zip"}, 422, "keypoints1: "),
        ({"keypoints1": archive(keypoints=np.zeros(3))}, 422, "keypoints1: keypoints must be"),
        ({"keypoints1": archive(keypoints=np.float32(1))}, 422, "keypoints1: keypoints must be"),
        ({"keypoints1": archive(keypoints=np.array([["a", "b"]]))}, 422, "keypoints1: "),
        ({"keypoints1": archive(keypoints=np.zeros((4, 3)))}, 422, "keypoints1: "),
        ({"keypoints1": b"{}"}, 422, "keypoints1: keypoints: "),
        ({"image1": b"no image"}, 415, "image1: "),
    ):
        answer = http.post("/v1/match", files={**pair, **files})
        assert answer.status_code == status, answer.text
        assert message in answer.json()["detail"]


def test_max_distance_drops_matches(http: httpx.Client, pair: Pair) -> None:
    far = http.post("/v1/match", files=pair, data={"min_confidence": "0"}).json()
    limit = float(np.median(far["distances"]))
    fields = {"min_confidence": "0", "max_distance": str(limit)}
    near = http.post("/v1/match", files=pair, data=fields).json()
    assert 0 < len(near["matches"]) < len(far["matches"])
    assert max(near["distances"]) <= limit + 1e-6
