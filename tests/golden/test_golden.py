"""The library, the command line and the service agree, and reproduce the recorded matches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from matchserve.cli import app
from tests.golden.record import ARRAYS, CASES, RECORDED, Case, image_pair, match
from tests.server_process import ServerProcess, running_server

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def recorded() -> Arrays:
    with np.load(RECORDED) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("golden")) as running:
        yield running


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_matches_are_as_recorded(case: Case, recorded: Arrays) -> None:
    """Another processor may round differently, so a few matches may differ there."""
    result = match(case)
    for name in ("keypoints0", "keypoints1"):
        expected = recorded[f"{case.name}/{name}"]
        assert result[name].shape == expected.shape
        np.testing.assert_allclose(result[name], expected, atol=0.01)
    pairs = set(map(tuple, result["matches"].tolist()))
    expected_pairs = set(map(tuple, recorded[f"{case.name}/matches"].tolist()))
    assert len(pairs & expected_pairs) >= 0.99 * len(pairs | expected_pairs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_library_command_line_and_service_agree(
    case: Case, server: ServerProcess, tmp_path: Path
) -> None:
    library = match(case)
    for source, fields in (
        ("command line", _by_command_line(case, tmp_path)),
        ("service", _by_service(case, server)),
    ):
        for name in ARRAYS:
            value = np.asarray(fields[name], library[name].dtype)
            np.testing.assert_array_equal(
                value.reshape(library[name].shape), library[name], err_msg=f"{source}: {name}"
            )


def _by_command_line(case: Case, folder: Path) -> dict[str, Any]:
    paths = [folder / "0.image", folder / "1.image"]
    for path, data in zip(paths, image_pair(case.images), strict=True):
        path.write_bytes(data)
    output = folder / "matches.json"
    arguments = [
        "match", *map(str, paths), "--model", case.model, "--verify", case.verify,
        "--max-keypoints", str(case.max_keypoints), "--json", str(output),
        *(["--upright"] if case.upright else []),
        "--min-confidence", "0", "--refine", "none", "--orientation", "oriented", "--duplicates",
        "--selection", "contrast",
    ]  # fmt: skip
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    fields: dict[str, Any] = orjson.loads(output.read_bytes())
    return fields


def _by_service(case: Case, server: ServerProcess) -> dict[str, Any]:
    image0, image1 = image_pair(case.images)
    data = {
        "model": case.model,
        "verify": case.verify,
        "max_keypoints": str(case.max_keypoints),
        "upright": str(case.upright).lower(),
        "min_confidence": "0",
        "refine": "none",
        "orientation": "oriented",
        "duplicates": "true",
        "selection": "contrast",
    }
    response = httpx.post(
        f"{server.url}/v1/match", files={"image0": image0, "image1": image1}, data=data, timeout=60
    )
    assert response.status_code == 200, response.text
    fields: dict[str, Any] = orjson.loads(response.content)
    return fields
