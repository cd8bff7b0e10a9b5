"""What the documentation shows is what happens."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.server_process import ServerProcess

DOCS = Path(__file__).resolve().parents[2] / "docs"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_figures_of_calibration_are_those_of_the_cards() -> None:
    written = (DOCS / "guides" / "calibrate.md").read_text(encoding="utf-8")
    assert written == script("make_calibration").page(), "run: python docs/make_calibration.py"
    for diagram in re.findall(r"!\[.*?\]\((.*?)\)", written):
        assert (DOCS / "guides" / diagram).is_file()


def test_the_committed_schema_and_reference_are_current() -> None:
    maker = script("make_api")
    described = maker.schema()
    hint = "run: python docs/make_api.py"
    assert (DOCS / "openapi.json").read_text(encoding="utf-8") == maker.schema_text(described), hint
    assert (DOCS / "reference" / "http-api.md").read_text(encoding="utf-8") == maker.page(
        described
    ), hint


def blocks(language: str) -> list[str]:
    text = (DOCS / "reference" / "http-api.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, pair: dict[str, bytes]) -> Path:
    (tmp_path / "a.jpg").write_bytes(pair["image0"])
    (tmp_path / "b.jpg").write_bytes(pair["image1"])
    return tmp_path


def here(text: str, server: ServerProcess) -> str:
    return text.replace("localhost:8000", f"127.0.0.1:{server.port}")


CURLS = [line for line in blocks("sh")[0].splitlines() if line.startswith("curl")]


def test_the_curl_lines(folder: Path, server: ServerProcess) -> None:
    assert len(CURLS) >= 8
    for line in CURLS:
        command = here(line, server).replace("curl ", "curl -sS --fail-with-body ", 1)
        done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stdout[:500], done.stderr)
    assert (folder / "matches.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_the_python_snippets(folder: Path, server: ServerProcess, number: int) -> None:
    code = here(blocks("python")[number], server)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def has_cpp_tools() -> bool:
    headers = ("opencv4/opencv2/features2d.hpp", "opencv4/opencv2/imgcodecs.hpp")
    has_headers = all((Path("/usr/include") / header).exists() for header in headers)
    if shutil.which("g++") is None or not has_headers:
        return False
    script = ["g++", "-E", "-include", "curl/curl.h", "-x", "c++", "/dev/null"]
    return subprocess.run(script, capture_output=True).returncode == 0


def test_the_cpp_snippet(folder: Path, server: ServerProcess) -> None:
    if not has_cpp_tools():
        pytest.skip("no g++ with OpenCV and libcurl: the C++ snippet was left out")
    (folder / "describe.cpp").write_text(here(blocks("cpp")[0], server), encoding="utf-8")
    for line in blocks("sh")[1].strip().splitlines():
        done = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
    assert '{"model":"rootsift","kind":"float","dim":128,"count":' in done.stdout
