from __future__ import annotations

import cv2
import numpy as np
import pytest

from matchserve.pattern import generate
from matchserve.types import Float64, UInt8
from matchserve.vision import tiles

SIZE = (640, 480)
FINE_SIGMA = 3.0


def search(grey: UInt8) -> list[cv2.KeyPoint]:
    detector = cv2.SIFT.create(contrastThreshold=0.03, enable_precise_upscale=True)
    return list(detector.detect(grey))


def sorted_rows(rows: Float64) -> Float64:
    return np.asarray(rows[np.lexsort(rows.T.round(3))])


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "MAX_WHOLE_PIXELS", 100_000)
    monkeypatch.setattr(tiles, "MAX_TILE_PIXELS", 100_000)


def test_small_keypoints_are_those_of_the_whole_image(
    small_tiles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    grey = generate(SIZE, seed=4)
    tiled = tiles.keypoint_rows(grey, search)
    monkeypatch.setattr(tiles, "MAX_WHOLE_PIXELS", grey.size)
    whole = tiles.keypoint_rows(grey, search)
    fine = [rows[rows[:, 2] < FINE_SIGMA] for rows in (tiled, whole)]
    assert len(fine[1]) > 200
    assert len(fine[0]) == len(fine[1])
    np.testing.assert_allclose(sorted_rows(fine[0]), sorted_rows(fine[1]), atol=2e-3)


def test_large_keypoints_are_near_those_of_the_whole_image(
    small_tiles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    grey = np.asarray(cv2.GaussianBlur(generate(SIZE, seed=4), (0, 0), 4), np.uint8)
    tiled = tiles.keypoint_rows(grey, search)
    monkeypatch.setattr(tiles, "MAX_WHOLE_PIXELS", grey.size)
    whole = tiles.keypoint_rows(grey, search)
    coarse = whole[whole[:, 2] > 2 * FINE_SIGMA]
    assert len(coarse) > 50
    distance = np.hypot(*(coarse[:, None, :2] - tiled[None, :, :2]).transpose(2, 0, 1))
    distance[np.abs(np.log(coarse[:, None, 2] / tiled[None, :, 2])) > 0.15] = np.inf
    nearest = distance.min(axis=1) / coarse[:, 2]
    assert np.mean(nearest < 0.25) > 0.9


@pytest.mark.parametrize("shape", [(2048, 2048), (1365, 2048), (16_384, 70), (7000, 7000)])
def test_no_search_takes_more_than_a_tile(shape: tuple[int, int]) -> None:
    seen: list[int] = []

    def counted(grey: UInt8) -> list[cv2.KeyPoint]:
        seen.append(grey.size)
        return []

    tiles.keypoint_rows(np.zeros(shape, np.uint8), counted)
    assert max(seen) <= tiles.MAX_TILE_PIXELS
    searched = sum(seen) / (shape[0] * shape[1])
    assert searched < 2.2


def test_an_image_is_divided_without_gaps() -> None:
    for length, count in ((2048, 3), (701, 2), (64, 1)):
        parts = tiles._parts(length, count)
        covered = [
            n for p in parts for n in range(max(0, p.inner_start), min(length, p.inner_stop))
        ]
        assert covered == list(range(length))
        assert all(p.start <= max(0, p.inner_start) for p in parts)
