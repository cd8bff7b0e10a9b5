"""What somebody meets who uses the command line for the first time: errors, lists, outputs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import get_args

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from matchserve import __version__, doctor, gpu, libraries
from matchserve.cli import app
from matchserve.cli.options import ImageFile
from matchserve.encoding import read_features
from matchserve.errors import (
    ImageTooLarge,
    InvalidParameter,
    MatchServeError,
    ModelCorrupt,
    UnknownModel,
    UnsupportedFormat,
)
from matchserve.limits import LIBRARY_LIMITS
from matchserve.models.registry import list_models, shipped_models_dir
from matchserve.pattern import generate
from tests.conftest import encoded
from tests.patience import wait_until
from tests.server_process import ServerProcess
from tests.tiny_models import write_tiny_model

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = tuple(list_models())


def call(*args: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in args])


def refused(*args: object) -> MatchServeError:
    """Return the error of a command that is refused."""
    result = call(*args)
    assert isinstance(result.exception, MatchServeError), result.output
    return result.exception


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "a.png"
    path.write_bytes(encoded(generate((320, 240), seed=3)))
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.jpg"
    path.write_text("this is not an image")
    return path


def test_an_error_names_the_argument_and_the_file(image: Path, text: Path, tmp_path: Path) -> None:
    second = refused("match", image, text, "--model", "sift")
    assert isinstance(second, UnsupportedFormat)
    assert second.message.startswith(f"image1 ({text}): not a")
    assert refused("match", text, image, "--model", "sift").message.startswith(f"image0 ({text})")
    described = refused("describe", text, "-o", tmp_path / "f.npz", "--model", "sift")
    assert described.message.startswith(f"image ({text}): ")


@pytest.mark.parametrize("command", ["match", "describe", "bench"])
def test_a_folder_in_place_of_a_file_says_what_to_do(command: str, tmp_path: Path) -> None:
    arguments = {"describe": ["-o", tmp_path / "f.npz"]}.get(command, [tmp_path])
    error = refused(command, tmp_path, *arguments)
    assert f"matchserve collection match {tmp_path} -o" in error.message
    assert f"matchserve reconstruct {tmp_path} -o" in error.message


def test_max_pixels_allows_and_refuses_an_image(image: Path, tmp_path: Path) -> None:
    out = tmp_path / "f.npz"
    error = refused("describe", image, "-o", out, "--model", "sift", "--max-pixels", 320 * 240 - 1)
    assert isinstance(error, ImageTooLarge)
    advised = re.search(r"--max-pixels (\d+) allows it", error.message)
    assert advised
    done = call("describe", image, "-o", out, "--model", "sift", "--max-pixels", advised[1])
    assert done.exit_code == 0, done.output
    for command in (["match", image, image], ["describe", image, "-o", out]):
        assert "--max-pixels" in refused(*command, "--max-pixels", 99).message


def test_describe_writes_hdf5_that_hloc_reads(image: Path, tmp_path: Path) -> None:
    for name in ("f.npz", "f.h5"):
        done = call("describe", image, "-o", tmp_path / name, "--model", "sift")
        assert done.exit_code == 0, done.output
    features = read_features(tmp_path / "f.npz")
    with h5py.File(tmp_path / "f.h5") as file:
        group = file["a.png"]
        np.testing.assert_array_equal(group["keypoints"], features.keypoints.xy)
        np.testing.assert_array_equal(group["image_size"], [320, 240])
        assert group["descriptors"].shape == (128, len(features))


def test_describe_refuses_a_format_before_any_work(text: Path, tmp_path: Path) -> None:
    error = refused("describe", text, "-o", tmp_path / "f.txt")
    assert isinstance(error, InvalidParameter)
    assert str(tmp_path / "f.npz") in error.message


def test_describe_on_a_server_equals_describe_here(image: Path, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "server.log")
    server.wait_until_alive()
    try:
        address = f"127.0.0.1:{server.port}"  # without a scheme
        options = ["--model", "rootsift", "--max-keypoints", 100]
        for name, more in (("here.npz", []), ("there.npz", ["--server", address])):
            done = call("describe", image, "-o", tmp_path / name, *options, *more)
            assert done.exit_code == 0, done.output
        wait_until(lambda: "/v1/features" in server.log())  # it was the server that described
    finally:
        server.stop()
    here, there = (read_features(tmp_path / name) for name in ("here.npz", "there.npz"))
    np.testing.assert_array_equal(here.descriptors, there.descriptors)
    np.testing.assert_array_equal(here.keypoints.xy, there.keypoints.xy)


def test_models_is_one_screen_with_one_line_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = call("models")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    rows = {line.split()[0]: line for line in lines if line.split()[0] in SHIPPED}
    assert set(rows) == set(SHIPPED)
    assert len([line for line in lines if line.strip()]) == len(SHIPPED) + 1
    assert max(len(line) for line in lines) <= 80
    assert "large collections" in rows["binary"]
    assert "…" not in "".join(line[-27:] for line in lines)  # no figure is cut off
    size, row_bytes, milliseconds, accuracy = rows["binary"].split()[-4:]
    file_mb = (shipped_models_dir() / "binary" / "model.onnx").stat().st_size / 1e6
    assert float(size) == pytest.approx(file_mb, abs=0.05)
    assert int(row_bytes) == 32
    assert int(milliseconds) > 0
    assert 40 < float(accuracy) < 70
    assert rows["sift"].split()[-1] != "-"  # from the table of a model that was compared with it


def test_a_long_purpose_neither_wraps_nor_cuts_off_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    write_tiny_model(tmp_path / "tiny", purpose="photographs of many kinds " * 10)
    lines = call("models", "--models-dir", tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["model", "sift", "rootsift", "tiny"]
    assert lines[-1].split()[-3] == "64"  # bytes of a descriptor


def test_models_name_prints_the_card_of_a_name_or_a_path(tiny_model: Path) -> None:
    done = call("models", "compact")
    assert "--magnification 36 --size 48" in done.stdout
    assert "Apache-2.0" in done.stdout
    assert "tiny" in call("models", tiny_model).stdout
    assert json.loads(call("models", "compact", "--json").stdout)["name"] == "compact"
    assert isinstance(refused("models", "nope"), UnknownModel)


def test_models_lists_a_broken_model_in_its_line(tiny_model: Path) -> None:
    (tiny_model / "card.json").write_text("{}")
    done = call("models", "--models-dir", tiny_model.parent)
    assert "broken" in done.stdout
    error = refused("models", "tiny", "--models-dir", tiny_model.parent)
    assert isinstance(error, ModelCorrupt)


def test_a_model_folder_named_without_a_slash_gets_a_hint(
    image: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_model, tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert "write ./mine" in refused("match", image, image, "--model", "mine").message
    assert "write ./" not in refused("match", image, image, "--model", "other").message


def test_version() -> None:
    assert call("--version").stdout == f"matchserve {__version__}\n"


def test_doctor_says_nothing_that_the_limits_contradict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matchserve.hardware.memory_limit_bytes", lambda: 10**12)
    report = {check.name: check for check in doctor.examine()}
    fits = re.search(r"a pair of (\d+) MP", report["memory"].detail)
    assert fits
    assert int(fits[1]) * 1e6 <= LIBRARY_LIMITS.max_pixels


def test_doctor_and_errors_give_one_command_to_install() -> None:
    assert gpu.INSTALL_GPU == libraries.GPU_HINT
    hints = [value for name, value in vars(libraries).items() if name.endswith("_HINT")]
    for hint in (*hints, doctor.TRAIN_HINT):
        assert "-c constraints.txt" in hint


def test_nobody_is_told_to_install_what_is_not_published() -> None:
    texts = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*"), ROOT / "README.md"]
    for package in ("matchserve", "training"):
        texts += (ROOT / package).rglob("*.py")
    found = [path for path in texts if b"install 'matchserve[" in path.read_bytes()]
    assert not found


def test_tiff_is_offered_only_where_it_is_taken(tmp_path: Path) -> None:
    (argument,) = get_args(ImageFile)[1:]
    assert "with --server not TIFF" in argument.help
    path = tmp_path / "a.tif"
    path.write_bytes(encoded(generate((320, 240), seed=3), "TIFF"))
    done = call("describe", path, "-o", tmp_path / "f.npz", "--model", "sift")
    assert done.exit_code == 0, done.output
