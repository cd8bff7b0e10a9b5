"""The pose of two cameras, asked for in every way that the service offers."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import httpx
import msgpack
import numpy as np
import pytest
from PIL import Image as Pillow
from typer.testing import CliRunner

from matchserve.cli import app
from matchserve.client import Client
from matchserve.encoding import result_fields
from matchserve.matcher import Matcher
from matchserve.options import Options, verify_options
from tests.corner_scene import FOCAL, SIZE, poses, render
from tests.distorted_scene import CAMERAS, DistortedPair, distorted_pair
from tests.server_process import ServerProcess

TEXTS = {"camera0": str(CAMERAS[0]), "camera1": str(CAMERAS[1])}
FIELDS = {"verify": "pose", "threshold_px": "1.5", **TEXTS}


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def scene() -> DistortedPair:
    return distorted_pair()


@pytest.fixture(scope="module")
def files(scene: DistortedPair) -> dict[str, bytes]:
    return {"image0": png(scene.images[0]), "image1": png(scene.images[1])}


@pytest.fixture(scope="module")
def expected(files: dict[str, bytes]) -> np.ndarray:
    options = Options(verify=verify_options("pose", 1.5, **TEXTS))
    result = Matcher("rootsift").match(files["image0"], files["image1"], options)
    return np.asarray(result_fields(result)["geometry"]["pose"])


def test_a_form_finds_the_pose_of_distorted_images(
    http: httpx.Client, files: dict[str, bytes], scene: DistortedPair, expected: np.ndarray
) -> None:
    answer = http.post("/v1/match", files=files, data=FIELDS)
    assert answer.status_code == 200, answer.text
    geometry = answer.json()["geometry"]
    assert geometry["kind"] == "pose"
    assert geometry["cameras"] == list(TEXTS.values())
    np.testing.assert_allclose(geometry["pose"], expected, atol=1e-9)
    assert max(scene.errors(np.array(geometry["pose"]))) < 0.2


def test_json_npz_and_msgpack_say_the_same(
    http: httpx.Client, files: dict[str, bytes], expected: np.ndarray
) -> None:
    images = {name: base64.b64encode(data).decode() for name, data in files.items()}
    camera0 = {"model": "OPENCV", "params": list(CAMERAS[0].parameters), "width": SIZE[0],
               "height": SIZE[1]}  # fmt: skip
    body = {**images, "verify": "pose", "threshold_px": 1.5, "camera0": camera0,
            "camera1": TEXTS["camera1"]}  # fmt: skip
    geometry = http.post("/v1/match", json=body).json()["geometry"]
    np.testing.assert_allclose(geometry["pose"], expected, atol=1e-9)
    npz = http.post("/v1/match", json=body, headers={"Accept": "application/x-npz"})
    with np.load(io.BytesIO(npz.content), allow_pickle=False) as arrays:
        np.testing.assert_allclose(arrays["geometry_pose"], expected, atol=1e-9)
        assert list(arrays["geometry_cameras"]) == list(TEXTS.values())
    packed = http.post("/v1/match", json=body, headers={"Accept": "application/msgpack"})
    pose = msgpack.unpackb(packed.content)["geometry"]["pose"]
    np.testing.assert_allclose(np.frombuffer(pose["data"]).reshape(3, 4), expected, atol=1e-9)


def test_client_features_and_command_line(
    server: ServerProcess, files: dict[str, bytes], expected: np.ndarray, tmp_path: Path
) -> None:
    with Client(server.url) as client:
        found = client.match(*files.values(), verify="pose", threshold_px=1.5, **TEXTS)
        cameras = {"camera0": CAMERAS[0], "camera1": CAMERAS[1]}
        first, second = (client.features(data) for data in files.values())
        again = client.match_features(first, second, verify="pose", **cameras)
        plain = client.match(*files.values())
    assert found.geometry_pose is not None
    np.testing.assert_allclose(found.geometry_pose, expected, atol=1e-9)
    assert found.geometry_cameras == tuple(TEXTS.values())
    assert again.geometry_pose is not None
    assert (plain.geometry_pose, plain.geometry_cameras) == (None, None)
    paths = []
    for name, data in files.items():
        paths.append(tmp_path / f"{name}.png")
        paths[-1].write_bytes(data)
    options = ["--verify", "pose", "--threshold-px", "1.5", "--model", "rootsift",
               "--camera0", TEXTS["camera0"], "--camera1", TEXTS["camera1"]]  # fmt: skip
    for extra in ([], ["--server", server.url]):
        output = tmp_path / "pose.json"
        ended = CliRunner().invoke(
            app, ["match", *map(str, paths), *options, *extra, "--json", str(output)]
        )
        assert ended.exit_code == 0, ended.output
        geometry = json.loads(output.read_text())["geometry"]
        np.testing.assert_allclose(geometry["pose"], expected, atol=1e-9)


def test_the_focal_length_of_exif_data_is_used_when_asked(http: httpx.Client) -> None:
    # The 35 mm equivalent is a whole number: the focal length is 0.3 % off.
    equivalent = round(FOCAL * np.hypot(36, 24) / np.hypot(*SIZE))
    files = {}
    for name, (turn, centre) in zip(("image0", "image1"), poses(4), strict=False):
        picture = Pillow.fromarray(render(turn, centre))
        exif = picture.getexif()
        exif.get_ifd(0x8769)[0xA405] = equivalent
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=95, exif=exif)
        files[name] = buffer.getvalue()
    answer = http.post("/v1/match", files=files, data={"verify": "pose", "camera": "exif"})
    geometry = answer.json()["geometry"]
    assert float(geometry["cameras"][0].split(",")[3]) == pytest.approx(FOCAL, rel=0.02)
    (turn0, _), (turn1, _) = poses(4)[:2]
    turn = np.array(geometry["pose"])[:, :3] @ (turn1 @ turn0.T).T
    assert np.degrees(np.arccos((np.trace(turn) - 1) / 2)) < 1.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"verify": "pose"}, "cameras of both"),
        ({"verify": "pose", "camera0": "900,900,1,1"}, "camera1"),
        ({"verify": "pose", "camera": "exif"}, "image0 has no focal length"),
        ({"verify": "pose", "camera": "OPENCV,1,2"}, "OPENCV has 8 parameters"),
        ({"verify": "pose", "camera": "PINHOLE,100,900,500,500,50,450"}, "100x900"),
        ({"verify": "homography", "camera": "900,900,1,1"}, "pose"),
    ],
)
def test_cameras_that_do_not_fit_are_named(
    http: httpx.Client, files: dict[str, bytes], fields: dict[str, str], message: str
) -> None:
    answer = http.post("/v1/match", files=files, data=fields)
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["code"] == "invalid_parameter"
    assert message in problem["detail"]
