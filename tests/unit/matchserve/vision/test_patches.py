"""The crop: every rule of `PatchSpec` seen from outside."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from matchserve.bench import crop_by_loop
from matchserve.errors import InvalidParameter
from matchserve.types import Keypoints, PatchSpec, UInt8
from matchserve.vision.decode import from_array
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.patches import crop


def keypoint(x: float, y: float, sigma: float, angle: float = 0.0) -> Keypoints:
    return Keypoints(
        np.array([[x, y]], np.float32),
        np.array([sigma], np.float32),
        np.array([angle], np.float32),
        np.ones(1, np.float32),
    )


def correlation(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


@pytest.mark.parametrize("magnification", [12.0, 18.0, 24.0])
def test_a_blob_has_the_size_that_k_says(magnification: float) -> None:
    """K is sides per sigma: this separates 12 from 24, the classical factor-of-two mistake."""
    y, x = np.mgrid[:200, :200]
    image = 220 * np.exp(-((x - 100.3) ** 2 + (y - 99.6) ** 2) / (2 * 6.0**2))
    patch = crop(
        from_array(image.astype(np.uint8)),
        keypoint(100.3, 99.6, 6.0),
        PatchSpec(magnification=magnification),
    )[0, 0].astype(float)
    v, u = np.mgrid[:32, :32] - 15.5
    width = math.sqrt((patch * u**2).sum() / patch.sum())
    # At K = 12 the blob fills the patch and is cut off at 2.7 sigma a side.
    assert width == pytest.approx(32 / magnification, rel=0.12 if magnification > 12 else 0.2)
    assert abs((patch * u).sum() / patch.sum()) < 0.05
    assert abs((patch * v).sum() / patch.sum()) < 0.05


def test_ramp_gives_slope_and_centre() -> None:
    image = np.tile(np.arange(256, dtype=np.uint8), (128, 1))
    for sigma, step in ((2.0, 0.75), (4.0, 1.5), (8.0, 3.0)):
        patch = crop(from_array(image), keypoint(120.25, 60.0, sigma), PatchSpec())[0, 0]
        slope = np.diff(patch.astype(float).mean(axis=0))
        assert slope.mean() == pytest.approx(step, rel=0.015)
        middle = patch[:, 15:17].astype(float).mean()
        assert middle == pytest.approx(120.25, abs=0.55)
        assert np.abs(np.diff(patch.astype(int), axis=0)).max() <= 1


def test_angle_is_clockwise_as_seen() -> None:
    image = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    turned = crop(from_array(image), keypoint(128, 128, 4.0, math.pi / 2), PatchSpec())[0, 0]
    # The patch's x axis now points down the image, so the ramp runs against its y axis.
    assert np.diff(turned.astype(float).mean(axis=1)).mean() == pytest.approx(-1.5, rel=0.02)


@pytest.mark.parametrize("quarter_turns", [1, 2, 3])
def test_patches_turn_with_the_image(grey_photograph: UInt8, quarter_turns: int) -> None:
    found = detect(from_array(grey_photograph), DetectOptions(max_keypoints=300))
    xy, angle = found.xy.astype(np.float64), found.angle.astype(np.float64)
    for _ in range(quarter_turns):
        xy = np.stack([xy[:, 1], 511 - xy[:, 0]], axis=1)
        angle = angle - math.pi / 2
    moved = Keypoints(xy.astype(np.float32), found.sigma, angle.astype(np.float32), found.score)
    inside = (np.abs(xy - 255.5) < 200).all(axis=1)
    spec = PatchSpec()
    before = crop(from_array(grey_photograph), found, spec)[inside].astype(int)
    turned = from_array(np.rot90(grey_photograph, quarter_turns))
    after = crop(turned, moved, spec)[inside].astype(int)
    assert np.abs(before - after).mean() < 2.0


def test_halving_the_image_keeps_the_patch(grey_photograph: UInt8) -> None:
    found = detect(from_array(grey_photograph), DetectOptions(max_keypoints=400))
    found = found[found.sigma > 3]
    halved = cv2.resize(grey_photograph, (256, 256), interpolation=cv2.INTER_AREA)
    xy = np.asarray((found.xy + 0.5) / 2 - 0.5, np.float32)
    moved = replace(found, xy=xy, sigma=np.asarray(found.sigma / 2, np.float32))
    before = crop(from_array(grey_photograph), found, PatchSpec())
    after = crop(from_array(np.asarray(halved, np.uint8)), moved, PatchSpec())
    scores = [correlation(a, b) for a, b in zip(before, after, strict=True)]
    assert np.median(scores) > 0.99
    assert np.mean(np.array(scores) > 0.98) > 0.9


def test_stripes_vanish_with_antialiasing_and_not_without() -> None:
    image = np.tile(np.array([0, 0, 255, 255], np.uint8), (400, 100))
    large = keypoint(200, 200, 11.3 * 32 / 12)
    on = crop(from_array(image), large, PatchSpec(antialias=True))[0, 0]
    off = crop(from_array(image), large, PatchSpec(antialias=False))[0, 0]
    assert on.std() < 8
    assert off.std() > 60


@pytest.mark.parametrize("border", ["replicate", "reflect"])
@pytest.mark.parametrize("corner", [(0, 0), (199, 0), (0, 149), (199, 149)])
def test_no_black_outside_the_image(border: str, corner: tuple[int, int]) -> None:
    image = np.full((150, 200), 180, np.uint8)
    spec = PatchSpec(border=border)  # type: ignore[arg-type]
    patches = crop(from_array(image), keypoint(*corner, 5.0, 0.7), spec)
    assert patches.min() == patches.max() == 180


def test_border_modes_differ(grey_photograph: UInt8) -> None:
    image = from_array(grey_photograph)
    edge = keypoint(2, 200, 5.0)
    replicate = crop(image, edge, PatchSpec(border="replicate"))[0, 0]
    reflect = crop(image, edge, PatchSpec(border="reflect"))[0, 0]
    assert (np.ptp(replicate[:, :10], axis=1) <= 1).all()
    assert np.ptp(reflect[:, :10], axis=1).max() > 5
    # reflect101: the pixel at the border itself is not repeated.
    ramp = np.tile(np.arange(64, dtype=np.uint8), (64, 1))
    row = crop(from_array(ramp), keypoint(0, 32, 32 / 12), PatchSpec(border="reflect"))[0, 0, 16]
    np.testing.assert_array_equal(row[:16], row[16:][::-1])
    assert row[15] == row[16] <= 1


def test_batch_equals_one_at_a_time_and_the_warp_loop(grey_photograph: UInt8) -> None:
    image = from_array(grey_photograph)
    found = detect(image, DetectOptions(max_keypoints=3000))
    spec = PatchSpec(magnification=20)
    together = crop(image, found, spec)
    for row in (0, 7, len(found) // 2, len(found) - 1):
        alone = crop(image, found[np.array([row])], spec)
        np.testing.assert_array_equal(alone[0], together[row])
    loop = crop_by_loop(image, found, spec)
    gap = np.abs(together.astype(int) - loop)
    # Both interpolate at 1/32 pixel; they may round a sample to different neighbours.
    assert gap.mean() < 0.5
    assert np.quantile(gap, 0.999) <= 12


def test_a_working_size_crops_what_the_small_image_shows(grey_photograph: UInt8) -> None:
    image = from_array(grey_photograph, max_side=256)
    sent = keypoint(200.5, 300.5, 8.0, 0.3)
    working = keypoint(100.0, 150.0, 4.0, 0.3)
    np.testing.assert_array_equal(
        crop(image, sent, PatchSpec()), crop(from_array(image.grey), working, PatchSpec())
    )


def test_no_keypoints_give_no_patches(pattern: UInt8) -> None:
    found = detect(from_array(pattern))[:0]
    assert crop(from_array(pattern), found, PatchSpec(size=24)).shape == (0, 1, 24, 24)


@pytest.mark.parametrize("size", [8, 64, 128])
def test_every_size_can_be_cropped(grey_photograph: UInt8, size: int) -> None:
    image = from_array(grey_photograph)
    found = detect(image, DetectOptions(max_keypoints=200, upright=True))
    small = crop(image, found, PatchSpec(size=8, antialias=False))
    large = crop(image, found, PatchSpec(size=size, antialias=False))
    assert large.shape == (200, 1, size, size)
    gap = large.mean(axis=(1, 2, 3)) - small.mean(axis=(1, 2, 3))
    assert np.abs(gap).mean() < 6


def test_keypoints_far_larger_than_the_image_are_cropped(pattern: UInt8) -> None:
    patches = crop(from_array(pattern), keypoint(160, 120, 500.0), PatchSpec(magnification=24))
    assert patches.shape == (1, 1, 32, 32)


@pytest.mark.parametrize(
    "change",
    [{"size": 4}, {"size": 200}, {"magnification": 0.5}, {"border": "black"}, {"version": 2}],
)
def test_a_spec_that_means_nothing_here_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter):
        dataclasses.replace(PatchSpec(), **change)  # type: ignore[arg-type]
