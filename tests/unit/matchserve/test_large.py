"""Large images in windows against the same images at once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from matchserve.cli import app
from matchserve.clock import Call, one_thread
from matchserve.errors import CorruptImage, ImageTooSmall, MissingInput, ProviderUnavailable
from matchserve.large import describe_large, match_large
from matchserve.libraries import import_pyvips
from matchserve.matcher import Matcher, Options
from matchserve.pattern import generate
from matchserve.types import Keypoints
from matchserve.vision.decode import decode, decode_colour
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.windows import MAX_SIGMA, Core, Level, Span, in_image, levels, spans, windows

ALL = Options(detect=DetectOptions(max_keypoints=100_000, further_orientations=0))
PLENTY = 10**6


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher("rootsift", threads=1)


@pytest.fixture(scope="module")
def grey() -> np.ndarray:
    return generate((700, 500), seed=3)


@pytest.fixture(
    scope="module",
    params=["png", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("jpg", "tif"))],
)
def file(
    request: pytest.FixtureRequest, grey: np.ndarray, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("large") / f"large.{request.param}"
    cv2.imwrite(str(path), grey, [cv2.IMWRITE_JPEG_QUALITY, 100] if path.suffix == ".jpg" else [])
    return path


def _table(keypoints: Keypoints) -> np.ndarray:
    """Rows whose distance is below 0.1 if position, scale and angle are about equal."""
    turn = np.stack([np.cos(keypoints.angle), np.sin(keypoints.angle)], axis=1)
    return np.column_stack([keypoints.xy, 2 * np.log2(keypoints.sigma), turn])


def test_windows_find_the_keypoints_of_the_whole_image(matcher: Matcher, file: Path) -> None:
    """Windows of 256 pixels lose, double and move nothing below the scale of the next level."""
    found = describe_large(matcher, file, ALL, per_megapixel=PLENTY, core=256)
    image = decode(file.read_bytes())
    whole = detect(image, ALL.detect)
    whole = whole[np.flatnonzero(whole.sigma < MAX_SIGMA)]
    assert len(whole) > 500
    rows, wanted = _table(found.keypoints), _table(whole)
    distance = np.linalg.norm(rows[None] - wanted[:, None], axis=2)
    nearest = distance.argmin(axis=1)
    assert (distance.min(axis=1) < 0.1).mean() >= 0.999
    assert len(np.unique(nearest)) == len(nearest)
    descriptors = matcher.descriptor.describe(image, whole, Call(threads=one_thread))
    cosine = (descriptors * found.descriptors[nearest]).sum(axis=1)
    assert (cosine > 0.999).mean() >= 0.99
    small = found.keypoints.sigma < MAX_SIGMA
    assert small.sum() <= 1.001 * len(whole)
    assert (~small).any()
    assert (np.diff(found.keypoints.score) <= 0).all()


def test_two_large_images_match(matcher: Matcher, grey: np.ndarray, tmp_path: Path) -> None:
    """Matches are in pixels of the whole images."""
    paths = (tmp_path / "a.png", tmp_path / "b.tif")
    cv2.imwrite(str(paths[0]), grey[:, :600])
    cv2.imwrite(str(paths[1]), grey[60:, 100:])
    verify = replace(ALL.verify, kind="homography")
    result = match_large(matcher, paths, replace(ALL, verify=verify))
    inliers = result.matches.pairs[result.verification.inliers]
    moved = result.features0.keypoints.xy[inliers[:, 0]] - np.array([100, 60], np.float32)
    error = np.linalg.norm(moved - result.features1.keypoints.xy[inliers[:, 1]], axis=1)
    assert len(inliers) > 50
    assert np.median(error) < 0.1
    assert result.features1.size == (600, 440)


def test_the_budget_is_for_each_part_of_the_image(matcher: Matcher, tmp_path: Path) -> None:
    """A strong corner does not take the keypoints of the rest."""
    picture = generate((600, 300), seed=5)
    picture[:, 300:] = 96 + picture[:, 300:] // 4
    cv2.imwrite(str(tmp_path / "a.png"), picture)
    found = describe_large(matcher, tmp_path / "a.png", ALL, per_megapixel=500, core=300)
    x = found.keypoints.xy[:, 0]
    assert (x < 300).sum() > 20
    assert (x >= 320).sum() > 20


def test_levels_end_with_one_window() -> None:
    assert [level.factor for level in levels((30_000, 20_000))] == [1, 4, 16, 64]
    assert [(level.width, level.is_last) for level in levels((1024, 700))] == [(1024, True)]
    for length in (1, 1024, 1025, 5000):
        parts = spans(length)
        assert [part.core_start for part in parts[1:]] == [part.core_end for part in parts[:-1]]
        assert (parts[0].start, parts[-1].end) == (0, length)
        assert all(part.end - part.start <= 1280 + 31 for part in parts)
    down, across = next(windows(levels((5000, 3000))[0]))
    assert (down.start, len(across)) == (0, 5)


def test_pixels_of_a_level_are_blocks_of_the_image() -> None:
    """The first pixel of a level covers four pixels of the image, whose centre is 1.5."""
    one = np.ones(1, np.float32)
    keypoints = Keypoints(np.zeros((1, 2), np.float32), one, one, one)
    level, span = Level(4, 100, 100, is_last=True), Span(10, 50, 20, 40)
    moved = in_image(keypoints, level, Core(span, span))
    assert moved.xy.tolist() == [[41.5, 41.5]]
    assert moved.sigma.tolist() == [4.0]


def test_files_that_cannot_be_used_are_named(matcher: Matcher, tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="nothing"):
        describe_large(matcher, tmp_path / "nothing.tif", ALL)
    (tmp_path / "text.tif").write_text("no image")
    with pytest.raises(CorruptImage, match="text"):
        describe_large(matcher, tmp_path / "text.tif", ALL)
    cv2.imwrite(str(tmp_path / "small.png"), np.zeros((8, 8), np.uint8))
    with pytest.raises(ImageTooSmall, match="8 x 8"):
        describe_large(matcher, tmp_path / "small.png", ALL)


def test_without_pyvips_the_message_says_how_to_install_it(
    matcher: Matcher, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyvips", None)
    import_pyvips.cache_clear()
    try:
        with pytest.raises(ProviderUnavailable, match=r"\[cpu,large\]"):
            describe_large(matcher, file, ALL)
    finally:
        import_pyvips.cache_clear()


def test_the_command_line(grey: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    cv2.imwrite(str(path), grey)
    command = ["match", str(path), str(path), "--tiles", "--model", "rootsift"]
    found = CliRunner().invoke(app, [*command, "--draw", str(tmp_path / "drawn.png")])
    assert found.exit_code == 0, found.output
    assert decode_colour((tmp_path / "drawn.png").read_bytes(), max_side=4000).shape[2] == 3
    refused = CliRunner().invoke(app, [*command, "--server", "localhost:1"])
    assert refused.exit_code != 0


READ_STRIPS = """
import re, sys
from pathlib import Path
from matchserve.large import Raster
from matchserve.vision.windows import CORE, levels, windows
def peak():
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.findall(r"VmHWM:\\s+(\\d+)", status)[0])
raster = Raster(sys.argv[1])
before = peak()
for level in levels(raster.size, CORE):
    for strip in raster.rows(level, [(down.start, down.end) for down, _ in windows(level, CORE)]):
        assert strip.shape[1] == level.width
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="not Linux")
@pytest.mark.parametrize("suffix", ["jpg", "tif"])
def test_memory_depends_on_the_width_of_the_image_alone(suffix: str, tmp_path: Path) -> None:
    """libvips would map a JPEG file, and hold every row of a strip in each of its steps."""
    path = tmp_path / f"large.{suffix}"
    width, height = 5000, 10_000
    noise = import_pyvips().Image.gaussnoise(width, height, mean=128, sigma=60, seed=1)
    noise.cast("uchar").write_to_file(str(path), **({"Q": 98} if suffix == "jpg" else {}))
    assert path.stat().st_size > 35_000_000
    command = [sys.executable, "-c", READ_STRIPS, str(path)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(ran.stdout) < 35_000_000
