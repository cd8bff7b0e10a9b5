"""The routes, asked as a client asks them."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import httpx
import msgpack
import numpy as np
import pytest
from PIL import Image as Pillow

from matchserve.encoding import result_fields
from matchserve.matcher import Matcher, Options
from tests.conftest import encoded

Pair = dict[str, bytes]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_a_pair_is_matched_as_the_matcher_does(http: httpx.Client, pair: Pair) -> None:
    answer = http.post("/v1/match", files=pair)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    options = Options(max_side=2048)
    expected = result_fields(Matcher("rootsift").match(pair["image0"], pair["image1"], options))
    np.testing.assert_allclose(body["keypoints0"], expected["keypoints0"], atol=1e-3)
    np.testing.assert_array_equal(body["matches"], expected["matches"])
    np.testing.assert_array_equal(body["inliers"], expected["inliers"])
    assert body["same_scene"] == expected["same_scene"] > 0.9
    assert body["geometry"]["inliers"] > 100
    assert (body["image0"]["width"], body["image0"]["height"]) == (400, 360)
    assert set(body) == set(expected)
    assert answer.headers["server-timing"].startswith("cache;dur=")


@pytest.mark.parametrize("kind", ["homography", "affine", "similarity"])
def test_a_map_of_the_plane_maps_the_matches(http: httpx.Client, pair: Pair, kind: str) -> None:
    body = http.post("/v1/match", files=pair, data={"verify": kind}).json()
    assert body["geometry"]["kind"] == kind
    assert body["same_scene"] > 0.9
    pairs = np.array(body["matches"])[np.array(body["inliers"])]
    points0 = np.array(body["keypoints0"])[pairs[:, 0]]
    points1 = np.array(body["keypoints1"])[pairs[:, 1]]
    mapped = (
        np.column_stack([points0, np.ones(len(points0))]) @ np.array(body["geometry"]["matrix"]).T
    )
    error = np.linalg.norm(mapped[:, :2] / mapped[:, 2:] - points1, axis=1)
    assert np.median(error) < 1.0


def test_fields_change_the_answer(http: httpx.Client, pair: Pair) -> None:
    fields = {"max_keypoints": "200", "verify": "none", "ratio": "0.8", "model": "sift"}
    body = http.post("/v1/match", files=pair, data=fields).json()
    assert body["model"] == "sift"
    # Positions are counted; the best half of them may have further orientations.
    assert len(set(map(tuple, body["keypoints0"]))) == 200 < len(body["keypoints0"]) <= 300
    assert body["truncated"] is True
    geometry = {"kind": "none", "matrix": None, "inliers": 0, "confidence": 0.0, "reason": "",
                "pose": None, "cameras": None}  # fmt: skip
    assert body["geometry"] == geometry
    assert body["same_scene"] is None


def test_every_encoding_carries_confidence_and_refined_points(
    http: httpx.Client, pair: Pair
) -> None:
    def ask(media_type: str) -> bytes:
        return http.post("/v1/match", files=pair, headers={"Accept": media_type}).content

    body = http.post("/v1/match", files=pair).json()
    count = len(body["matches"])
    assert count > 50
    assert min(body["confidence"]) >= 0.5
    assert sum(body["refined"]) > 0.8 * count
    assert body["orientation"] == "oriented"
    assert body["geometry"]["reason"]
    keypoints1 = np.array(body["keypoints1"])[np.array(body["matches"])[:, 1]]
    moved = np.linalg.norm(np.array(body["points1"]) - keypoints1, axis=1)
    assert (moved[~np.array(body["refined"])] == 0).all()
    assert np.median(moved) > 0.01
    with np.load(io.BytesIO(ask("application/x-npz"))) as arrays:
        kept = {name: arrays[name] for name in arrays.files}
    packed = msgpack.unpackb(ask("application/msgpack"))
    for name in ("confidence", "points0", "points1", "refined", "affine"):
        expected = np.array(body[name])
        np.testing.assert_allclose(kept[name], expected, atol=1e-4, err_msg=name)
        array = packed[name]
        values = np.frombuffer(array["data"], array["dtype"]).reshape(array["shape"])
        np.testing.assert_allclose(values, expected, atol=1e-4, err_msg=name)
    assert str(kept["orientation"]) == packed["orientation"] == body["orientation"]
    assert str(kept["geometry_reason"]) == body["geometry"]["reason"]


def test_raw_matches_are_still_there(http: httpx.Client, pair: Pair) -> None:
    raw = {"min_confidence": "0", "refine": "none", "orientation": "oriented"}
    every = http.post("/v1/match", files=pair, data=raw).json()
    some = http.post("/v1/match", files=pair).json()
    assert len(every["matches"]) > len(some["matches"])
    assert not any(every["refined"])
    assert every["affine"] is None
    assert len(every["confidence"]) == len(every["matches"])


def test_json_with_base64_and_data_urls_is_the_same(http: httpx.Client, pair: Pair) -> None:
    form = http.post("/v1/match", files=pair, data={"max_keypoints": "300"}).json()
    body = http.post(
        "/v1/match",
        json={
            "image0": b64(pair["image0"]),
            "image1": "data:image/jpeg;base64," + b64(pair["image1"]),
            "max_keypoints": 300,
        },
    ).json()
    assert body["matches"] == form["matches"]


def test_npz_msgpack_and_png(http: httpx.Client, pair: Pair) -> None:
    form = http.post("/v1/match", files=pair).json()

    def ask(accept: str) -> httpx.Response:
        answer = http.post("/v1/match", files=pair, headers={"Accept": accept})
        assert answer.status_code == 200
        assert answer.headers["content-type"] == accept
        return answer

    with np.load(io.BytesIO(ask("application/x-npz").content), allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["matches"], form["matches"])
    packed = msgpack.unpackb(ask("application/msgpack").content)
    matches = packed["matches"]
    rows = np.frombuffer(matches["data"], matches["dtype"]).reshape(matches["shape"])
    np.testing.assert_array_equal(rows, form["matches"])
    picture = Pillow.open(io.BytesIO(ask("image/png").content))
    assert picture.format == "PNG"
    assert picture.width > 800
    assert http.post("/v1/match", files=pair, headers={"Accept": "text/html"}).status_code == 406


@pytest.mark.parametrize("model", ["rootsift", "tiny", "tiny-bits"])
@pytest.mark.parametrize("how", ["list", "base64", "npz"])
def test_features_then_match_equals_match(
    http: httpx.Client, pair: Pair, model: str, how: str
) -> None:
    # Features are matched without the images, so their points cannot be refined.
    fields = {"model": model, "max_keypoints": "400", "refine": "none", "orientation": "oriented"}
    direct = http.post("/v1/match", files=pair, data=fields)
    features = []
    for name in ("image0", "image1"):
        answer = http.post(
            "/v1/features",
            files={"image": pair[name]},
            data={"model": model, "max_keypoints": "400"}
            | ({"descriptors": how} if how != "npz" else {}),
            headers={"Accept": "application/x-npz"} if how == "npz" else {},
        )
        assert answer.status_code == 200, answer.text
        features.append(answer.content if how == "npz" else answer.json())
    names = ("features0", "features1")
    if how == "npz":
        again = http.post("/v1/features/match", files=dict(zip(names, features, strict=True)))
    else:
        again = http.post("/v1/features/match", json=dict(zip(names, features, strict=True)))
        through_match = http.post("/v1/match", json=dict(zip(names, features, strict=True)))
        assert through_match.json()["matches"] == direct.json()["matches"]
    assert again.status_code == 200, again.text
    assert again.json()["matches"] == direct.json()["matches"]
    assert again.json()["model"] == model


def test_features_say_which_file_of_a_model_made_them(http: httpx.Client, pair: Pair) -> None:
    fields = {"model": "tiny", "max_keypoints": "50"}
    described = http.post("/v1/features", files={"image": pair["image0"]}, data=fields).json()
    assert described["fingerprint"]
    both = {"features0": described, "features1": described}
    for path in ("/v1/features/match", "/v1/match"):
        assert http.post(path, json=both).status_code == 200
    unknown = {key: value for key, value in described.items() if key != "fingerprint"}
    assert http.post("/v1/features/match", json={**both, "features1": unknown}).status_code == 200
    other = {**described, "fingerprint": "0" * 16}
    answer = http.post("/v1/features/match", json={**both, "features1": other})
    assert (answer.status_code, answer.json()["code"]) == (422, "feature_mismatch")


@pytest.mark.parametrize("how", ["list", "base64"])
def test_an_image_without_keypoints_goes_all_the_way(http: httpx.Client, how: str) -> None:
    flat = encoded(np.full((64, 64), 99, np.uint8))
    described = http.post("/v1/features", files={"image": flat}, data={"descriptors": how}).json()
    assert described["keypoints"] == []
    answer = http.post("/v1/features/match", json={"features0": described, "features1": described})
    assert (answer.status_code, answer.json()["matches"]) == (200, [])


def test_features_of_different_models_are_refused(http: httpx.Client, pair: Pair) -> None:
    described = [
        http.post("/v1/features", files={"image": pair["image0"]}, data={"model": m}).json()
        for m in ("sift", "rootsift")
    ]
    answer = http.post(
        "/v1/features/match", json={"features0": described[0], "features1": described[1]}
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "feature_mismatch")


def test_patches_as_bytes_and_as_json(http: httpx.Client) -> None:
    patches = np.random.default_rng(3).integers(0, 256, (130, 32, 32), np.uint8)
    raw = http.post(
        "/v1/patches?model=tiny",
        content=patches.tobytes(),
        headers={"Content-Type": "application/octet-stream"},
    ).json()
    rows = np.array(raw["descriptors"], np.float32)
    assert (raw["count"], raw["dim"], raw["kind"]) == (130, 16, "float")
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    body = http.post(
        "/v1/patches",
        json={"model": "tiny", "patches": b64(patches.tobytes()), "descriptors": "base64"},
    ).json()
    packed = np.frombuffer(base64.b64decode(body["descriptors"]), "<f4").reshape(130, 16)
    np.testing.assert_allclose(packed, rows, atol=1e-6)


def test_the_same_image_again_is_not_described_again(http: httpx.Client, pair: Pair) -> None:
    fields = {"max_keypoints": "777"}
    first = http.post("/v1/match", files=pair, data=fields).json()
    before = http.get("/metrics").text
    again = http.post("/v1/match", files=pair, data=fields).json()
    after = http.get("/metrics").text
    assert "detect" in first["timings_ms"]
    assert "detect" not in again["timings_ms"]
    assert again["matches"] == first["matches"]

    def hits(text: str) -> float:
        lines = [
            line
            for line in text.splitlines()
            if line.startswith('matchserve_feature_cache_total{outcome="hit"}')
        ]
        return float(lines[0].split()[-1]) if lines else 0.0

    assert hits(after) == hits(before) + 2


def test_exif_is_applied_or_ignored(http: httpx.Client, photograph: np.ndarray) -> None:
    buffer = io.BytesIO()
    exif = Pillow.Exif()
    exif[0x0112] = 6
    Pillow.fromarray(photograph[:300, :400]).save(buffer, "JPEG", exif=exif)
    files = {"image": buffer.getvalue()}
    turned = http.post("/v1/features", files=files).json()
    stored = http.post("/v1/features", files=files, data={"exif": "ignore"}).json()
    assert (turned["image_size"], stored["image_size"]) == ([300, 400], [400, 300])


def test_models_info_and_health(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()
    assert {m["name"] for m in listed["models"]} == {"sift", "rootsift", "tiny", "tiny-bits"}
    assert listed["default"] == "rootsift"
    assert http.get("/v1/models/tiny").json()["sha256"]
    info = http.get("/info").json()
    assert info["models"]["tiny"]["provider"] == "CPUExecutionProvider"
    assert info["limits"]["max_keypoints"] == 8192
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json()["models"]["tiny"] == "ready"


def test_metrics_have_the_promised_names(http: httpx.Client, pair: Pair) -> None:
    http.post("/v1/match", files=pair, data={"model": "tiny"})
    text = http.get("/metrics").text
    for name in (
        'requests_total{code="200",method="POST",route="/v1/match"}',
        "request_duration_seconds_bucket",
        'stage_duration_seconds_count{stage="infer"}',
        'stage_duration_seconds_count{stage="queue"}',
        'stage_duration_seconds_count{stage="crop"}',
        "batch_size_patches_count",
        "queue_patches",
        "keypoints_count",
        "matches_count",
        "inlier_ratio_count",
        "inflight_bytes 0.0",
        'model_info{model="tiny"',
        "requests_waiting",
    ):
        assert f"matchserve_{name}" in text, name


def test_request_ids_are_kept_when_safe_and_replaced_when_not(http: httpx.Client) -> None:
    kept = http.get("/healthz", headers={"X-Request-ID": "abc-123"})
    assert kept.headers["x-request-id"] == "abc-123"
    replaced = http.get("/healthz", headers={"X-Request-ID": 'x"y z'})
    assert replaced.headers["x-request-id"] not in ("", 'x"y z')


def test_every_answer_has_safe_headers(http: httpx.Client) -> None:
    for path in ("/", "/healthz", "/v1/nothing", "/assets/app.js"):
        headers = http.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "server" not in headers


def test_no_field_of_a_request_takes_a_url(http: httpx.Client) -> None:
    schema = http.get("/openapi.json").json()
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    sent = json.dumps([[o.get("requestBody"), o.get("parameters")] for o in operations])
    seen: set[str] = set()
    while references := set(re.findall(r"#/components/schemas/(\w+)", sent)) - seen:
        seen |= references
        sent += json.dumps([schema["components"]["schemas"][name] for name in references])
    text = sent.lower().replace(" ", "")
    assert "max_keypoints" in text
    assert '"format":"uri"' not in text
    assert '"url"' not in text


def test_the_client_does_not_learn_paths(http: httpx.Client, models_dir: Path) -> None:
    for path in ("/v1/models", "/info", "/v1/models/tiny", "/metrics", "/v1/models/none"):
        assert str(models_dir) not in http.get(path).text
