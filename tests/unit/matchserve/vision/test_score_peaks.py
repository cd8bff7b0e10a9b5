"""Peaks of a score over places and scales: where blobs are, between pixels, at any size."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest

from matchserve.types import Float32, Float64, UInt8
from matchserve.vision.score_peaks import (
    REACH,
    Pyramid,
    ScoreMap,
    _is_peak,
    _refined,
    score_peaks,
)
from tests.tiny_detector import blob_kernel

PYRAMID = Pyramid(per_octave=2, sigma=2.0)


def blob_score(level: Float32) -> Float32:
    """Log of 1 plus the squared difference of two Gaussians, zero outside as a convolution pads."""
    blobs = cv2.filter2D(level, cv2.CV_32F, blob_kernel(), borderType=cv2.BORDER_CONSTANT)
    return np.asarray(np.log1p(np.square(blobs)), np.float32)


def go_on() -> None:
    """Let the search go on."""


def image_of_blobs(shape: tuple[int, int], blobs: list[tuple[float, float, float]]) -> UInt8:
    y, x = np.mgrid[: shape[0], : shape[1]]
    grey = np.full(shape, 100.0)
    for centre_x, centre_y, sigma in blobs:
        grey += 120 * np.exp(-((x - centre_x) ** 2 + (y - centre_y) ** 2) / (2 * sigma**2))
    return np.asarray(np.clip(grey, 0, 255), np.uint8)


def strongest(rows: Float64, count: int) -> Float64:
    return rows[np.argsort(-rows[:, 3])[:count]]


def test_blobs_are_found_between_pixels() -> None:
    truth = [(60.3, 50.6, 2.5), (150.75, 80.2, 2.5), (100.5, 140.4, 2.5)]
    rows = score_peaks(blob_score, PYRAMID, image_of_blobs((200, 220), truth), go_on)
    found = strongest(rows, 3)
    for x, y, _ in truth:
        error = np.hypot(found[:, 0] - x, found[:, 1] - y).min()
        assert error < 0.2


def test_the_maximum_of_a_quadratic_is_found_exactly() -> None:
    y, x = np.mgrid[:40, :50]
    score = -((x - 20.3) ** 2 + (y - 17.8) ** 2).astype(np.float32)
    row, column = np.nonzero(_is_peak(score))
    assert (row.tolist(), column.tolist()) == ([18], [20])
    assert _refined(score, row, column)[0] == pytest.approx([20.3, 17.8], abs=1e-3)


def test_twice_as_large_blobs_have_twice_the_scale() -> None:
    small, large = (
        strongest(score_peaks(blob_score, PYRAMID, image_of_blobs((700, 700), [blob]), go_on), 1)[0]
        for blob in [(350.0, 350.0, 4.0), (350.0, 350.0, 8.0)]
    )
    assert large[2] / small[2] == pytest.approx(2.0, rel=0.1)


def test_strips_give_the_scores_of_the_whole_level(monkeypatch: pytest.MonkeyPatch) -> None:
    grey = np.random.default_rng(1).integers(0, 256, (300, 200), np.uint8)
    whole = score_peaks(blob_score, PYRAMID, grey, go_on)
    monkeypatch.setattr("matchserve.vision.score_peaks._STRIP_PIXELS", 200 * 50)
    pixels: list[int] = []

    def watched(level: Float32) -> Float32:
        height, width = level.shape
        pixels.append((height - 2 * REACH) * (width - 2 * REACH))
        return blob_score(level)

    np.testing.assert_allclose(score_peaks(watched, PYRAMID, grey, go_on), whole, atol=1e-4)
    assert max(pixels) <= 200 * 50


def test_the_search_ends_when_the_check_says_so() -> None:
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        score_peaks(blob_score, PYRAMID, image_of_blobs((200, 200), []), check)


@pytest.mark.parametrize("shape", [(16, 16), (39, 500), (1, 1)])
def test_images_smaller_than_a_level_have_no_peaks(shape: tuple[int, int]) -> None:
    rows = score_peaks(blob_score, PYRAMID, np.full(shape, 7, np.uint8), go_on)
    assert rows.shape[1] == 4


def test_a_mirrored_image_has_mirrored_peaks() -> None:
    noise = np.random.default_rng(2).integers(0, 256, (160, 200), np.uint8)
    grey = np.asarray(cv2.GaussianBlur(noise, (0, 0), 2), np.uint8)
    rows = strongest(score_peaks(blob_score, PYRAMID, grey, go_on), 30)
    mirrored = score_peaks(blob_score, PYRAMID, np.ascontiguousarray(grey[:, ::-1]), go_on)
    mirrored = strongest(mirrored, 40)
    for x, y, sigma, _ in rows:
        gap = np.abs(mirrored[:, :3] - [199 - x, y, sigma]).sum(axis=1).min()
        assert gap < 0.05


def constant(value: float) -> Callable[[Float32], Float32]:
    return lambda level: np.full(level.shape, value, np.float32)


@pytest.mark.parametrize("score", [constant(0.0), constant(50.0)])
def test_flat_scores_have_no_peaks(score: ScoreMap) -> None:
    rows = score_peaks(score, PYRAMID, np.zeros((100, 120), np.uint8), go_on)
    assert len(rows) == 0
