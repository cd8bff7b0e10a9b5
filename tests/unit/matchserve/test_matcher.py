"""Two images in, matches out: quality asserted on a photograph and on generated pairs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from matchserve import (
    JudgeOptions,
    Limits,
    Matcher,
    MatchOptions,
    MatchResult,
    Options,
    VerifyOptions,
    match_images,
)
from matchserve.errors import (
    FeatureMismatch,
    ImageTooLarge,
    ImageTooSmall,
    InvalidParameter,
    MissingInput,
)
from matchserve.files import read_file
from matchserve.pipeline import describing, pair_runner
from matchserve.types import Keypoints, UInt8
from tests.conftest import encoded

HOMOGRAPHY = Options(verify=VerifyOptions("homography"))


def warped(image: UInt8) -> tuple[UInt8, NDArray[np.float64]]:
    turn = cv2.getRotationMatrix2D((256, 256), 33.0, 0.8)
    homography = np.vstack([turn, [1.5e-4, -1e-4, 1.0]])
    return np.asarray(cv2.warpPerspective(image, homography, (512, 512)), np.uint8), homography


def corner_error(result: MatchResult, truth: NDArray[np.float64]) -> float:
    corners = np.array([[[0.0, 0.0], [511, 0], [511, 511], [0, 511]]])
    assert result.verification.matrix is not None
    found = cv2.perspectiveTransform(corners, result.verification.matrix)
    return float(np.linalg.norm(found - cv2.perspectiveTransform(corners, truth), axis=2).max())


def test_a_photograph_under_a_known_homography(photograph: UInt8) -> None:
    other, truth = warped(photograph)
    result = Matcher("rootsift").match(encoded(photograph), encoded(other), HOMOGRAPHY)
    assert corner_error(result, truth) < 1.0
    points0, points1 = result.points()
    expected = cv2.perspectiveTransform(points0[None].astype(np.float64), truth)[0]
    correct = np.linalg.norm(expected - points1, axis=1) < 3
    assert correct.sum() > 350
    assert correct[result.verification.inliers].mean() > 0.97
    assert result.verification.confidence > 0.999


def test_an_image_with_itself_is_the_identity(photograph: UInt8) -> None:
    result = Matcher("rootsift").match(photograph, photograph, HOMOGRAPHY)
    np.testing.assert_array_equal(result.matches.pairs[:, 0], result.matches.pairs[:, 1])
    places = {tuple(xy) for xy in result.features0.keypoints.xy.tolist()}
    assert len(result.matches) == len(places) < len(result.features0)
    assert corner_error(result, np.eye(3)) < 1e-3
    assert result.inlier_count == len(result.matches)


def test_unrelated_images_have_no_confidence(photograph: UInt8, pattern: UInt8) -> None:
    result = Matcher("rootsift").match(photograph, pattern)
    assert result.verification.confidence < 0.5


@pytest.mark.parametrize("shade", [0, 255])
def test_flat_images_match_nothing(shade: int, pattern: UInt8) -> None:
    flat = np.full((100, 120), shade, np.uint8)
    for other in (flat, pattern):
        result = Matcher("rootsift").match(flat, other)
        assert len(result.matches) == 0
        assert result.verification.matrix is None


def test_bytes_paths_and_arrays_are_the_same_image(
    photograph: UInt8, grey_photograph: UInt8, tmp_path: Path
) -> None:
    path = tmp_path / "photograph.png"
    path.write_bytes(encoded(photograph))
    matcher = Matcher("rootsift")
    by_array = matcher.features(photograph)
    for source in (path, str(path), path.read_bytes(), memoryview(path.read_bytes())):
        np.testing.assert_array_equal(matcher.features(source).descriptors, by_array.descriptors)
    assert matcher.features(grey_photograph).size == (512, 512)


def test_a_learned_model_is_used_by_its_path(tiny_model: Path, pattern: UInt8) -> None:
    result = Matcher(str(tiny_model)).match(pattern, pattern)
    assert result.model == "tiny"
    np.testing.assert_array_equal(result.matches.pairs[:, 0], result.matches.pairs[:, 1])


def test_a_binary_model_matches_by_hamming_distance(
    tiny_binary_model: Path, pattern: UInt8
) -> None:
    result = Matcher(str(tiny_binary_model)).match(pattern, pattern)
    assert result.features0.kind == "binary"
    assert (result.matches.distance == 0).all()


def test_a_smaller_working_size_finds_the_same_geometry(photograph: UInt8) -> None:
    other, truth = warped(photograph)
    options = Options(max_side=300, verify=VerifyOptions("homography"))
    result = Matcher("rootsift").match(photograph, other, options)
    assert result.features0.size == (512, 512)
    assert corner_error(result, truth) < 3.0


def test_features_can_be_matched_later(photograph: UInt8) -> None:
    other, _ = warped(photograph)
    matcher = Matcher("rootsift")
    # Without the images no point can be refined.
    unrefined = Options(judge=JudgeOptions(refine="none"), orientation="oriented")
    together = matcher.match(photograph, other, unrefined)
    apart = matcher.match_features(matcher.features(photograph), matcher.features(other))
    np.testing.assert_array_equal(together.matches.pairs, apart.matches.pairs)
    with pytest.raises(FeatureMismatch):
        matcher.match_features(matcher.features(photograph), Matcher("sift").features(other))


def test_ratio_keeps_the_sure_ones(photograph: UInt8) -> None:
    other, truth = warped(photograph)
    matcher = Matcher("rootsift")

    def precision(options: Options) -> tuple[int, float]:
        result = matcher.match(photograph, other, options)
        points0, points1 = result.points()
        expected = cv2.perspectiveTransform(points0[None].astype(np.float64), truth)[0]
        return len(result.matches), float((np.linalg.norm(expected - points1, axis=1) < 3).mean())

    loose, strict = precision(Options()), precision(Options(match=MatchOptions(ratio=0.8)))
    assert strict[0] < loose[0]
    assert strict[1] > loose[1]


def test_one_matcher_serves_many_threads(photograph: UInt8) -> None:
    matcher = Matcher("rootsift")
    images = [np.ascontiguousarray(np.rot90(photograph, k)) for k in range(4)]
    alone = [matcher.match(photograph, image).matches.pairs for image in images]
    answers: dict[int, NDArray[np.int32]] = {}

    def work(k: int) -> None:
        answers[k] = matcher.match(photograph, images[k % 4]).matches.pairs

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(8):
        np.testing.assert_array_equal(answers[k], alone[k % 4])


def test_timings_name_every_stage(pattern: UInt8) -> None:
    timings = Matcher("rootsift").match(pattern, pattern).timings_ms
    assert list(timings) == ["decode", "detect", "describe", "match", "verify", "total"]
    assert all(value >= 0 for value in timings.values())


def test_bad_input_is_a_typed_error(tmp_path: Path, pattern: UInt8) -> None:
    matcher = Matcher("rootsift")
    with pytest.raises(MissingInput, match=r"nothing\.jpg"):
        matcher.match(tmp_path / "nothing.jpg", pattern)
    with pytest.raises(MissingInput):
        matcher.match("a\0b", pattern)
    with pytest.raises(ImageTooSmall):
        matcher.match(pattern, pattern[:5])
    with pytest.raises(InvalidParameter, match="cannot be a int"):
        matcher.features(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="at most 100"):
        Matcher("rootsift", limits=Limits(max_keypoints=100)).features(pattern)


def test_images_too_large_together_are_described_one_after_the_other(
    pattern: UInt8, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = Matcher("rootsift").match(pattern, pattern)
    running: list[int] = []
    peak: list[int] = []
    real = describing.Describer._find

    def watched(*args: Any) -> Keypoints:
        running.append(1)
        peak.append(len(running))
        time.sleep(0.05)
        found = real(*args)
        running.pop()
        return found

    monkeypatch.setattr(describing.Describer, "_find", watched)
    Matcher("rootsift").match(pattern, pattern)
    assert max(peak) == 2
    peak.clear()
    monkeypatch.setattr(pair_runner, "memory_limit_bytes", lambda: 1000)
    apart = Matcher("rootsift").match(pattern, pattern)
    assert max(peak) == 1
    np.testing.assert_array_equal(apart.matches.pairs, together.matches.pairs)


def test_a_file_is_not_read_beyond_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    path.write_bytes(bytes(5000))
    assert len(read_file(path, 1000)) == 1001
    with pytest.raises(ImageTooLarge):
        Matcher("rootsift", limits=Limits(max_image_bytes=1000)).features(path)


def test_a_model_directory_may_be_a_path_object(tiny_model: Path) -> None:
    assert Matcher(tiny_model).descriptor.card.name == "tiny"


@pytest.mark.parametrize("bad", [{"exif": "aply"}, {"max_side": 3}])
def test_senseless_options_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter):
        Options(**bad)  # type: ignore[arg-type]


def test_the_one_line_way(pattern: UInt8) -> None:
    assert len(match_images(pattern, pattern).matches) > 50
