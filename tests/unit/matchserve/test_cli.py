"""The command line as a user runs it: a process, its output, its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from matchserve.pattern import generate
from matchserve.types import UInt8
from matchserve.vision.decode import decode_colour
from tests.conftest import encoded


def run(*args: object, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [sys.executable, "-m", "matchserve", *map(str, args)], capture_output=True, check=False
    )
    assert b"Traceback" not in done.stderr
    if check:
        assert done.returncode == 0, done.stderr.decode()
    return done


@pytest.fixture
def files(pattern_pair: tuple[UInt8, UInt8, object], tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "a.png", tmp_path / "b.png"
    for path, image in zip(paths, pattern_pair, strict=False):
        path.write_bytes(encoded(image))  # type: ignore[arg-type]
    return paths


def test_match_writes_json_npz_and_a_picture(files: tuple[Path, Path], tmp_path: Path) -> None:
    npz, png = tmp_path / "m.npz", tmp_path / "m.png"
    done = run(
        "match", *files, "--verify", "homography", "--json", "-", "--npz", npz, "--draw", png
    )
    fields = orjson.loads(done.stdout)
    assert fields["geometry"]["inliers"] > 200
    assert b"inliers of one homography" in done.stderr
    assert f"same_scene: {min(fields['same_scene'], 0.99):.2f}".encode() in done.stderr
    assert fields["same_scene"] > 0.9
    with np.load(npz) as arrays:
        assert len(arrays["matches"]) == len(fields["matches"])
    assert decode_colour(png.read_bytes(), max_side=4000).shape[2] == 3


def test_match_with_cameras_gives_a_pose(files: tuple[Path, Path]) -> None:
    camera = "500,500,240,180"
    args = ["--verify", "pose", "--camera0", camera, "--camera1", camera, "--json", "-"]
    fields = orjson.loads(run("match", *files, *args).stdout)
    assert fields["geometry"]["kind"] == "pose"
    assert fields["same_scene"] is None


def test_a_model_by_path(files: tuple[Path, Path], tiny_model: Path) -> None:
    done = run("match", *files, "--model", tiny_model, "--json", "-")
    assert orjson.loads(done.stdout)["model"] == "tiny"
    assert b"same_scene: unknown" in done.stderr
    assert b"CPUExecutionProvider" in done.stderr


def test_every_option_of_match_reaches_the_matcher(files: tuple[Path, Path]) -> None:
    def found(*args: object) -> dict[str, Any]:
        fields = orjson.loads(run("match", *files, "--json", "-", *args).stdout)
        assert isinstance(fields, dict)
        return fields

    plain = found()
    assert len(found("--ratio", 0.7)["matches"]) < len(plain["matches"])
    few = ("--max-keypoints", 100, "--views", 1, "--further-orientations")
    assert len(found(*few, 0)["keypoints0"]) == 100
    assert 100 < len(found(*few, 1)["keypoints0"]) <= 200
    assert found("--upright")["matches"] != plain["matches"]
    assert len(found("--max-side", 200)["keypoints0"]) < len(plain["keypoints0"])
    tight = found("--threshold-px", 0.2)["geometry"]["inliers"]
    assert tight < plain["geometry"]["inliers"]
    assert found("--verify", "none")["geometry"]["kind"] == "none"


def test_describe(files: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "f.npz"
    run("describe", files[0], "-o", out, "--max-keypoints", 300, "--model", "sift")
    with np.load(out) as arrays:
        assert len(np.unique(arrays["keypoints"], axis=0)) == 300
        assert arrays["descriptors"].shape == (len(arrays["keypoints"]), 128)


def test_models_and_doctor(tiny_model: Path) -> None:
    folder = tiny_model.parent
    cards = orjson.loads(run("models", "--json", "--models-dir", folder).stdout)
    assert {"sift", "rootsift", "tiny"} == set(cards)
    checks = orjson.loads(run("doctor", "--json", "--models-dir", folder).stdout)
    report = {check["name"]: check for check in checks}
    assert report["a match"]["ok"]
    assert "CPUExecutionProvider" in report["model tiny"]["detail"]
    assert report["cuda"]["ok"] is True or ".[gpu]" in report["cuda"]["detail"]
    assert b"rootsift" in run("models").stdout


def test_doctor_fails_when_a_model_is_broken(tiny_model: Path) -> None:
    (tiny_model / "model.onnx").write_bytes(b"broken")
    done = run("doctor", "--models-dir", tiny_model.parent, check=False)
    assert done.returncode == 1
    assert b"broken" in done.stdout


def test_bench_prints_ratios(files: tuple[Path, Path]) -> None:
    done = run(
        "bench", *files, "--model", "rootsift", "--rounds", 1, "--max-keypoints", 300, "--json", "-"
    )
    fields = orjson.loads(done.stdout)
    assert fields["pipelines"]["OpenCV SIFT + BF ratio"]["ratio"] == 1.0
    assert fields["pipelines"]["rootsift"]["ratio"] > 0
    raw, ours = (fields["pipelines"][name] for name in ("rootsift, raw matches", "rootsift"))
    spent = [raw["cpu_ms"][stage] for stage in ("detect", "describe", "match")]
    added = ours["cpu_ms"]["match"] + ours["cpu_ms"]["verify"] - raw["cpu_ms"]["match"]
    assert ours["added_share"] == pytest.approx(added / sum(spent))
    assert set(fields["pipelines"]["rootsift"]["cpu_ms"]) >= {"detect", "describe", "match"}
    assert fields["components"]["crop / warpAffine loop"]["speedup"] > 0


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["match", "nothing.jpg", "nothing.jpg"], 66, b"cannot read nothing.jpg"),
        (["match", "{a}", "{text}"], 65, b"not a JPEG"),
        (["match", "{a}", "{a}", "--model", "nope"], 2, b"no model named 'nope'"),
        (["match", "{a}", "{a}", "--ratio", "7"], 2, b"ratio is 7.0"),
        (["match", "{a}", "{a}", "--max-keypoints", "0"], 2, b"at least 1"),
        (["match", "{a}", "{a}", "--verify", "pose"], 2, b"cameras of both"),
        (["match", "{a}", "{a}", "--verify", "projective"], 2, b"--verify"),
        (
            ["match", "{a}", "{a}", "--verify", "pose", "--camera0", "1,2", "--camera1", "1"],
            2,
            b"fx,fy",
        ),
        (["match", "{a}", "{a}", "--camera0", "1,2,3,4"], 2, b"for verify 'pose' only"),
        (["match", "{a}", "{a}", "--draw", "x.jpg"], 2, b"name it x.png"),
        (["match", "{a}", "{a}", "--json", "-", "--npz", "-"], 2, b"only one output"),
        (["match", "{a}", "{a}", "--provider", "cuda", "--model", "sift"], 78, b"OpenCV"),
        (["models", "--models-dir", "/no/such/folder"], 78, b"no folder of models"),
        (["match", "{a}", "{a}", "--json", "/no/such/dir/x"], 2, b"cannot write"),
        (["match", "{a}"], 2, b"Missing argument"),
        (["bench", "{a}"], 2, b"two images or none"),
        (["bench", "--size", "huge"], 2, b"WIDTHxHEIGHT"),
        (["frobnicate"], 2, b"No such command"),
    ],
)
def test_errors_are_one_clear_line_and_a_code(
    files: tuple[Path, Path], tmp_path: Path, args: list[str], code: int, words: bytes
) -> None:
    text = tmp_path / "text.jpg"
    text.write_text("this is not an image")
    done = run(*[a.format(a=files[0], text=text) for a in args], check=False)
    assert done.returncode == code
    assert words in done.stderr


def test_a_full_or_closed_standard_output_is_one_line(files: tuple[Path, Path]) -> None:
    for redirect in (">/dev/full", ">&-"):
        command = f"{sys.executable} -m matchserve match {files[0]} {files[1]} --json - {redirect}"
        done = subprocess.run(command, shell=True, capture_output=True, check=False)
        assert done.returncode == 2
        assert b"cannot write standard output" in done.stderr
        assert b"Traceback" not in done.stderr


def test_a_terminal_without_our_letters_still_lists_the_models() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "matchserve", "models"],
        capture_output=True, check=True, env=environment,
    )  # fmt: skip
    assert b"rootsift" in done.stdout


# `matchserve` that prints a line when it begins to find keypoints.
BUSY = """
from matchserve.cli import main
from matchserve.vision import keypoints

find = keypoints._chosen

def announced(*arguments):
    print("busy", flush=True)
    return find(*arguments)

keypoints._chosen = announced
main()
"""


def test_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    """A signal ends the program while it finds keypoints in a large image."""
    image = tmp_path / "large.png"
    image.write_bytes(encoded(np.tile(generate((1000, 800)), (6, 6))))
    with subprocess.Popen(
        [sys.executable, "-c", BUSY, "match", str(image), str(image), "--max-side", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            # Both images are searched at once, and either may print first.
            assert process.stdout.readline().startswith(b"busy")
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT
    assert b"Traceback" not in errors


def test_provider_cuda_is_refused_without_a_gpu(files: tuple[Path, Path], tiny_model: Path) -> None:
    done = run("match", *files, "--model", tiny_model, "--provider", "cuda", check=False)
    if done.returncode == 0:
        assert b"CUDAExecutionProvider" in done.stderr
    else:
        assert done.returncode == 78
        assert b"'cuda' was asked for" in done.stderr
