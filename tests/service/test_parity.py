"""Library, command line, HTTP and client return the same fields and the same values."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from matchserve import (
    GivenPoints,
    ImageInput,
    Mask,
    Matcher,
    MatchOptions,
    Options,
    VerifyOptions,
    parse_shapes,
)
from matchserve.cli import app
from matchserve.client import Client
from matchserve.encoding import result_fields
from matchserve.types import UInt8
from tests.conftest import encoded
from tests.server_process import ServerProcess

LEFT = [-1.0, -1.0, 99.5, 500.0]
VOLATILE = {"timings_ms"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, photograph: UInt8) -> dict[str, Path]:
    """Two images, a mask of the second that hides its right half, and keypoints."""
    folder = tmp_path_factory.mktemp("parity")
    mask = np.full((360, 400), 255, np.uint8)
    mask[:, 200:] = 0
    contents = {
        "first.png": encoded(photograph[:360, :400], "PNG"),
        "second.png": encoded(photograph[20:380, 10:410], "PNG"),
        "mask.png": encoded(mask, "PNG"),
        "points.json": json.dumps(
            {"keypoints": [[50, 60], [120.5, 80]], "scales": [2, 3]}
        ).encode(),
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return {name.partition(".")[0]: folder / name for name in contents}


def same(found: Any, expected: Any, where: str) -> None:
    if isinstance(expected, dict):
        assert set(found) == set(expected), where
        for name in set(expected) - VOLATILE:
            same(found[name], expected[name], f"{where}.{name}")
    elif isinstance(expected, np.ndarray | list | tuple) and len(expected):
        if isinstance(expected[0], str):
            assert list(found) == list(expected), where
        else:
            np.testing.assert_allclose(found, expected, atol=1e-4, err_msg=where)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-4), where
    else:
        assert found == expected or len(expected) == len(found) == 0, where


def run(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, [str(word) for word in arguments])
    assert done.exit_code == 0, done.output
    fields: dict[str, Any] = json.loads(done.stdout)
    return fields


def test_a_match_with_masks_and_details(
    server: ServerProcess, http: httpx.Client, files: dict[str, Path]
) -> None:
    matcher = Matcher("rootsift")
    first, second = files["first"], files["second"]
    dark = matcher.load(files["mask"]).grey
    masked = ImageInput(first, Mask(parse_shapes([LEFT]))), ImageInput(second, Mask(image=dark))
    all_matches = matcher.match(*masked).matches
    limit = round(float(all_matches.distance.max()) / 2, 3)
    result = matcher.match(*masked, Options(match=MatchOptions(max_distance=limit)))
    expected = result_fields(result, details=True)
    assert 30 < len(result.matches) < len(all_matches)
    points0, points1 = result.points()
    assert points0[:, 0].min() > 99
    assert points1[:, 0].max() < 201
    assert max(expected["distances"]) <= limit

    arguments = ["match", first, second, "--model", "rootsift", "--max-distance", limit]
    arguments += ["--ignore0", ",".join(map(str, LEFT)), "--mask1", files["mask"], "--details"]
    same(run(*arguments, "--json", "-"), expected, "command line")
    same(run(*arguments, "--json", "-", "--server", server.url), expected, "with --server")

    sent = {"image0": first.read_bytes(), "image1": second.read_bytes()}
    sent["mask1"] = files["mask"].read_bytes()
    fields = {"ignore0": json.dumps([LEFT]), "max_distance": str(limit), "details": "true"}
    same(http.post("/v1/match", files=sent, data=fields).json(), expected, "HTTP")

    with Client(server.url) as client:
        found = client.match(
            np.asarray(_pixels(first)),
            second,
            ignore0=[LEFT],
            mask1=dark,
            max_distance=limit,
            details=True,
        )
    named = dataclasses.asdict(found)
    for name in set(named) & set(expected) - VOLATILE - {"confidence"}:
        same(named[name], expected[name], f"client.{name}")
    assert named["truncated"] == expected["truncated"]
    assert named["image_size0"] == result.features0.size
    assert named["working_size1"] == result.features1.working_size
    assert set(named["timings_ms"]) >= {"match", "total"}
    assert found.scales0 is not None


def test_a_similarity(server: ServerProcess, files: dict[str, Path]) -> None:
    matcher = Matcher("rootsift")
    options = Options(verify=VerifyOptions("similarity"))
    expected = result_fields(matcher.match(files["first"], files["second"], options))
    # The second image is the first, moved by 10 and 20 pixels.
    shift = [[1, 0, -10], [0, 1, -20], [0, 0, 1]]
    np.testing.assert_allclose(expected["geometry"]["matrix"], shift, atol=0.1)
    arguments = ["match", files["first"], files["second"], "--model", "rootsift"]
    arguments += ["--verify", "similarity", "--json", "-"]
    same(run(*arguments), expected, "command line")
    same(run(*arguments, "--server", server.url), expected, "with --server")


def test_given_keypoints_of_the_command_line_and_the_client(
    server: ServerProcess, files: dict[str, Path], tmp_path: Path
) -> None:
    image = files["first"]
    given = GivenPoints(np.array([[50, 60], [120.5, 80]]), np.array([2, 3]))
    expected = Matcher("rootsift").features(ImageInput(image, points=given))
    for name, more in (("here", []), ("there", ["--server", server.url])):
        output = tmp_path / f"{name}.npz"
        arguments = ["describe", image, "--model", "rootsift", "--keypoints", files["points"]]
        words = [str(word) for word in (*arguments, "-o", output, *more)]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        with np.load(output) as arrays:
            np.testing.assert_array_equal(arrays["keypoints"], expected.keypoints.xy)
            np.testing.assert_allclose(arrays["descriptors"], expected.descriptors, atol=1e-5)
    with Client(server.url) as client:
        found = client.features(image, keypoints={"keypoints": given.xy, "scales": given.scales})
        plain = client.features(image, keypoints=given.xy)
    np.testing.assert_allclose(found.descriptors, expected.descriptors, atol=1e-5)
    assert len(plain) == 2


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--ignore0", "1,2,3"], "x0,y0,x1,y1"),
        (["--ignore0", "a,b,c,d"], "numbers with commas"),
        (["--mask0", "POINTS"], "mask of image0"),
        (["--keypoints0", "FIRST"], "not a file of keypoints"),
    ],
)
def test_wrong_values_of_the_command_line_are_named(
    files: dict[str, Path], option: list[str], message: str
) -> None:
    paths = {"POINTS": str(files["points"]), "FIRST": str(files["first"])}
    words = [paths.get(word, word) for word in option]
    arguments = ["match", str(files["first"]), str(files["second"]), "--model", "rootsift"]
    done = CliRunner().invoke(app, [*arguments, *words])
    assert done.exit_code != 0
    assert message in " ".join(str(done.exception or "").split() + done.output.split())


def _pixels(path: Path) -> Any:
    from PIL import Image

    return Image.open(path)
