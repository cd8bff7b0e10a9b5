"""Every command of README, Start, Guides and Operations runs, or is listed with the reason."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data as samples

from matchserve.pattern import generate
from matchserve.types import UInt8
from tests.conftest import encoded
from tests.corner_scene import write_scene
from tests.docs.blocks import ROOT, blocks, user_pages
from tests.docs.commands import INSTEAD, NOT_RUN, SMALLER
from tests.docs.walkthrough import Walkthrough

# Rows of many commands, which take minutes; `.ci/run` follows them after `make test`.
SLOW_ROWS = [
    [
        "docs/guides/train.md",
        "docs/guides/patches.md",
        "docs/guides/evaluate.md",
        "docs/guides/calibrate.md",
    ],
    ["docs/start/install.md", "docs/guides/match.md"],
    ["docs/start/first-training.md", "docs/guides/serve.md", "docs/operations/index.md"],
    ["docs/guides/collections.md", "docs/operations/performance.md"],
]
# Pages of one row are followed in one folder, in this order.
ROWS = [
    *SLOW_ROWS,
    ["README.md"],
    ["docs/start/first-match.md", "docs/guides/curl.md", "docs/guides/python.md"],
    ["docs/guides/plug-ins.md", "docs/guides/reproduce.md", "docs/operations/containers.md"],
]
# Pages whose commands need a GPU; tests/gpu/checklist.py runs them where there is one.
NEED_A_GPU = {"docs/operations/gpu-checklist.md"}
CPP = "docs/guides/cpp.md"


def shell_lines() -> list[str]:
    found = [block for page in user_pages() for block in blocks(page)]
    return [line for block in found if block.language == "sh" for line in block.lines()]


@pytest.fixture
def walkthrough(tmp_path: Path) -> Iterator[Walkthrough]:
    followed = Walkthrough(tmp_path)
    yield followed
    followed.stop()


@pytest.fixture
def pictures(tmp_path: Path, photograph: UInt8) -> Path:
    """Files that the pages take for granted: a pair, photographs, images of one place."""
    turn = cv2.getRotationMatrix2D((200, 180), 25, 0.9)
    turned = cv2.warpAffine(photograph[:360, :400], turn, (400, 360))
    (tmp_path / "a.jpg").write_bytes(encoded(photograph[:360, :400], "JPEG", quality=92))
    (tmp_path / "b.jpg").write_bytes(encoded(np.asarray(turned, np.uint8), "JPEG", quality=92))
    (tmp_path / "photos").mkdir()
    for name in ("astronaut", "coffee", "rocket"):
        picture = cv2.resize(getattr(samples, name)(), (600, 400))
        (tmp_path / "photos" / f"{name}.png").write_bytes(encoded(np.asarray(picture, np.uint8)))
    return tmp_path


@pytest.mark.parametrize(
    "pages",
    [
        pytest.param(
            pages,
            id=pages[0].removesuffix(".md"),
            marks=[pytest.mark.slow] if pages in SLOW_ROWS else [],
        )
        for pages in ROWS
    ],
)
def test_the_commands_of_the_pages(
    pages: list[str], pictures: Path, walkthrough: Walkthrough
) -> None:
    if {"README.md", "docs/guides/patches.md", "docs/guides/collections.md"} & set(pages):
        write_scene(pictures / "corner", 5)
        (pictures / "scenes").mkdir()
        (pictures / "corner" / "images").rename(pictures / "scenes" / "corner")
    if "docs/guides/patches.md" in pages:
        write_registered_pair(pictures)
    for page in pages:
        if page == "docs/guides/calibrate.md":  # needs a dozen scenes and photographs
            for seed in range(9):
                picture = encoded(generate((400, 300), seed=20 + seed))
                (pictures / "photos" / f"{seed}.png").write_bytes(picture)
        walkthrough.follow(page)


def write_registered_pair(pictures: Path) -> None:
    """Write the pair of `pictures` again, as a registered pair."""
    folder = pictures / "registered" / "night" / "001"
    folder.mkdir(parents=True)
    for name, copy in (("a.jpg", "1.jpg"), ("b.jpg", "2.jpg")):
        shutil.copy(pictures / name, folder / copy)
    turn = cv2.getRotationMatrix2D((200, 180), 25, 0.9)
    np.savetxt(folder / "H_1_2", np.vstack([turn, [0.0, 0.0, 1.0]]))


def test_the_cpp_example(pictures: Path, walkthrough: Walkthrough) -> None:
    if not has_cpp_tools():
        pytest.skip("no g++ with OpenCV and libcurl: the C++ example was left out")
    walkthrough.follow(CPP)


def has_cpp_tools() -> bool:
    headers = ("opencv4/opencv2/features2d.hpp", "opencv4/opencv2/imgcodecs.hpp")
    has_headers = all((Path("/usr/include") / header).exists() for header in headers)
    if shutil.which("g++") is None or not has_headers:
        return False
    script = ["g++", "-E", "-include", "curl/curl.h", "-x", "c++", "/dev/null"]
    return subprocess.run(script, capture_output=True, check=False).returncode == 0


def test_every_page_with_commands_is_followed() -> None:
    followed = {page for row in ROWS for page in row} | {CPP} | NEED_A_GPU
    others = [page for page in user_pages() if page not in followed]
    unlisted = [
        (block.page, line)
        for page in others
        for block in blocks(page)
        if block.language in ("sh", "python")
        for line in block.lines()
        if line not in NOT_RUN
    ]
    assert not unlisted, "add the page to ROWS, or the command to NOT_RUN with the reason"


def test_every_block_has_a_known_language() -> None:
    known = {"sh", "python", "text", "cpp", "toml", "json"}
    found = [block for page in user_pages() for block in blocks(page)]
    assert not [(b.page, b.text[:60]) for b in found if b.language not in known]


def test_every_exception_is_of_a_command_that_is_there() -> None:
    there = set(shell_lines())
    assert set(NOT_RUN) | set(SMALLER) | set(INSTEAD) <= there


def test_the_extras_of_pip_lines_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    named = [re.search(r"\.\[([\w,]+)\]", line) for line in shell_lines() if "pip install" in line]
    used = {extra for match in named if match for extra in match[1].split(",")}
    assert used
    assert used <= extras
