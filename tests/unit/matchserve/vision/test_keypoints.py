from __future__ import annotations

import math
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest

from matchserve.errors import InvalidParameter
from matchserve.types import Float64, Image, Keypoints, UInt8
from matchserve.vision import keypoints as module
from matchserve.vision import texture
from matchserve.vision.decode import from_array
from matchserve.vision.keypoints import DetectOptions, detect, to_opencv
from matchserve.vision.selection import Selection
from matchserve.vision.tiles import Search, keypoint_rows


def blobs(seed: int) -> tuple[UInt8, Float64]:
    """Gaussian blobs at known sub-pixel places: the image, and rows of x, y, sigma."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(np.arange(6), np.arange(6)), axis=-1).reshape(-1, 2)
    places = 50 + 76 * grid + rng.uniform(-3, 3, grid.shape)
    sigmas = rng.uniform(2.5, 6, len(places))
    y, x = np.mgrid[:480, :480]
    image = np.full((480, 480), 60.0)
    for (cx, cy), sigma in zip(places, sigmas, strict=True):
        image += 150 * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * sigma**2))
    return np.clip(np.round(image), 0, 255).astype(np.uint8), np.column_stack([places, sigmas])


def nearest(found: Keypoints, xy: Float64) -> tuple[np.ndarray, np.ndarray]:
    distance = np.linalg.norm(found.xy[None] - xy[:, None], axis=2)
    return distance.argmin(axis=1), distance.min(axis=1)


@pytest.mark.parametrize("quarter_turns", [0, 1, 2, 3])
def test_localisation_is_unbiased_also_after_rotation(quarter_turns: int) -> None:
    errors, sigma_ratios = [], []
    for seed in range(4):
        image, truth = blobs(seed)
        xy = truth[:, :2]
        for _ in range(quarter_turns):
            xy = np.stack([xy[:, 1], 479 - xy[:, 0]], axis=1)
        found = detect(from_array(np.rot90(image, quarter_turns)))
        rows, distance = nearest(found, xy)
        hit = distance < 1
        assert hit.mean() > 0.8
        errors.append((found.xy[rows] - xy)[hit])
        sigma_ratios.append((found.sigma[rows] / truth[:, 2])[hit])
    mean_error = np.concatenate(errors).mean(axis=0)
    assert np.abs(mean_error).max() < 0.02
    assert np.abs(np.concatenate(errors)).mean(axis=0).max() < 0.03
    # The DoG peak of a blob is at its own sigma; OpenCV reports the lower blur of the two.
    assert np.concatenate(sigma_ratios).mean() == pytest.approx(0.89, abs=0.04)


def test_exactly_the_strongest_in_one_order(grey_photograph: UInt8) -> None:
    image = from_array(grey_photograph)
    options = DetectOptions(100_000, selection="contrast", further_orientations=0)
    everything = detect(image, options)
    some = detect(image, replace(options, max_keypoints=500))
    assert len(everything) > 1000
    assert len(some) == 500
    np.testing.assert_array_equal(some.xy, everything.xy[:500])
    assert (np.diff(everything.score) <= 0).all()


@pytest.mark.parametrize("textured", ["everywhere", "in the bands looked at", "between them"])
@pytest.mark.parametrize("upright", [False, True])
def test_a_raised_threshold_loses_no_strong_keypoint(
    textured: str, upright: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0).normal(0, 40, (512, 512))
    image = np.asarray(cv2.GaussianBlur(noise, (0, 0), 1.5), np.float64) * 4
    in_band = np.arange(512) % module._BAND_STEP < module._BAND
    if textured == "in the bands looked at":
        image[~in_band] *= 0.05
    elif textured == "between them":
        image[in_band] *= 0.05
    grey = np.clip(image + 128, 0, 255).astype(np.uint8)
    options = DetectOptions(1000, upright, selection="contrast", further_orientations=0)
    thresholds = []
    dog = module._dog

    def recorded(grey: UInt8, threshold: float, *rest: Any) -> Float64:
        thresholds.append(threshold)
        return dog(grey, threshold, *rest)

    monkeypatch.setattr(module, "_dog", recorded)
    quick = detect(from_array(grey), options)
    assert len(quick) == 1000
    if textured == "everywhere":
        assert len(thresholds) == 1
        assert thresholds[0] > 5 * options.contrast_threshold
    monkeypatch.setattr(module, "_estimate_threshold", lambda *_: 0.0)
    thorough = detect(from_array(grey), options)
    for field in ("xy", "sigma", "angle", "score"):
        assert np.array_equal(getattr(quick, field), getattr(thorough, field))


def test_ties_are_ordered_by_place() -> None:
    tile = np.zeros((40, 40), np.uint8)
    cv2.circle(tile, (20, 20), 6, 200, -1)
    image = from_array(np.tile(tile, (6, 6)))
    found = detect(image, DetectOptions(max_keypoints=10_000, further_orientations=0))
    rows = np.column_stack([-found.score, found.xy[:, 1], found.xy[:, 0], found.sigma, found.angle])
    order = np.lexsort(rows.T[::-1])
    np.testing.assert_array_equal(order, np.arange(len(found)))
    assert len(np.unique(found.score)) < len(found)


def test_upright_drops_copies_by_orientation(grey_photograph: UInt8) -> None:
    image = from_array(grey_photograph)
    turned = detect(image, DetectOptions(max_keypoints=100_000, duplicates=True))
    upright = detect(image, DetectOptions(max_keypoints=100_000, upright=True))
    places = np.unique(np.column_stack([turned.xy, turned.sigma]), axis=0)
    assert len(upright) == len(places) < len(turned)
    assert (upright.angle == 0).all()


def test_one_orientation_spends_the_budget_on_distinct_positions(grey_photograph: UInt8) -> None:
    image = from_array(grey_photograph)
    every = detect(image, DetectOptions(max_keypoints=500, duplicates=True))
    single = detect(image, DetectOptions(max_keypoints=500, further_orientations=0))
    for found, is_distinct in ((every, False), (single, True)):
        places = np.unique(np.column_stack([found.xy, found.sigma]), axis=0)
        assert len(found) == 500
        assert (len(places) == 500) is is_distinct
    strongest = {tuple(row) for row in every.xy.tolist()}
    assert strongest < {tuple(row) for row in single.xy.tolist()}


@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize("selection", ["contrast", "repeatable"])
def test_the_best_keypoints_have_further_orientations(
    grey_photograph: UInt8, share: float, selection: Selection
) -> None:
    image = from_array(grey_photograph)
    options = DetectOptions(400, selection=selection, further_orientations=share)
    found, single = detect(image, options), detect(image, replace(options, further_orientations=0))
    rows = [tuple(row) for row in np.column_stack([found.xy, found.angle]).tolist()]
    assert len(set(rows)) == len(rows)
    # The first orientation of each position is the one that is used without further ones.
    places: dict[tuple[float, float], list[float]] = {}
    for x, y, angle in rows:
        places.setdefault((x, y), []).append(angle)
    assert list(places) == [tuple(xy) for xy in single.xy.tolist()]
    assert [angles[0] for angles in places.values()] == single.angle.tolist()
    # All orientations of the best share, and only of it.
    every = detect(image, DetectOptions(100_000, duplicates=True, selection="contrast"))
    counts = Counter(tuple(xy) for xy in every.xy.tolist())
    best = int(share * 400)
    for rank, (place, angles) in enumerate(places.items()):
        assert len(angles) == (counts[place] if rank < best else 1)
    assert len(single) < len(found) <= len(single) + best


def test_further_orientations_are_no_more_than_their_share(
    grey_photograph: UInt8, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where every position has many of them."""

    def repeated(grey: UInt8, search: Search) -> Float64:
        rows = keypoint_rows(grey, search)
        turns = np.array([0.0, 0.01, 0.02, 0.03])
        turned = np.repeat(rows, len(turns), axis=0)
        turned[:, 3] += np.tile(turns, len(rows))
        return turned

    monkeypatch.setattr(module, "keypoint_rows", repeated)
    found = detect(from_array(grey_photograph), DetectOptions(400, further_orientations=0.5))
    assert len(found) == 600
    assert len(np.unique(found.xy, axis=0)) == 400


def test_max_side_gives_coordinates_of_the_sent_image(grey_photograph: UInt8) -> None:
    large = cv2.resize(grey_photograph, None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC)
    small = detect(from_array(large, max_side=512), DetectOptions(max_keypoints=400))
    full = detect(from_array(large), DetectOptions(max_keypoints=4000))
    rows, distance = nearest(full, small.xy.astype(np.float64))
    close = distance < 1.0
    assert close.mean() > 0.7
    shift = (full.xy[rows] - small.xy)[close].mean(axis=0)
    assert np.abs(shift).max() < 0.05
    same_scale = np.log2(full.sigma[rows] / small.sigma)[close]
    assert np.abs(np.median(same_scale)) < 0.1


@pytest.mark.parametrize("shade", [0, 127, 255])
def test_flat_images_have_no_keypoints(shade: int) -> None:
    assert len(detect(from_array(np.full((200, 300), shade, np.uint8)))) == 0


def test_flat_surroundings_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    image = np.full((128, 256), 128, np.uint8)
    image[:, :128] += rng.integers(0, 2, (128, 128), np.uint8)  # noise of half a grey level
    image[:, 128:] = rng.integers(60, 200, (128, 128), np.uint8)
    options = DetectOptions(contrast_threshold=0.0, max_keypoints=100_000)
    kept = detect(from_array(image), options)
    monkeypatch.setattr(texture, "FLAT_STD", 0.0)
    everything = detect(from_array(image), options)
    assert (kept.xy[:, 0] > 110).all()
    # A keypoint of sigma s looks 6 s to each side: some left of the border see the texture.
    reach = kept.xy[:, 0] + 6 * kept.sigma
    assert (reach > 127).all()
    assert (kept.xy[:, 0] < 128).any()
    assert (everything.xy[:, 0] < 110).sum() > 20


def test_opencv_keypoints_round_trip(grey_photograph: UInt8) -> None:
    original = cv2.SIFT.create(enable_precise_upscale=True).detect(grey_photograph)
    image = from_array(grey_photograph)
    ours = Keypoints(
        xy=np.array([k.pt for k in original], np.float32),
        sigma=np.array([k.size / 2 for k in original], np.float32),
        angle=np.radians(np.array([k.angle for k in original], np.float32)),
        score=np.ones(len(original), np.float32),
    )
    back = to_opencv(ours, image)
    assert [k.size for k in back] == pytest.approx([k.size for k in original], rel=1e-6)
    assert [k.angle for k in back] == pytest.approx([k.angle for k in original], abs=1e-3)
    # Octave and layer are recovered from the size, but for a few on the border between two.
    same = [b.octave & 0xFFFF == k.octave & 0xFFFF for b, k in zip(back, original, strict=True)]
    assert np.mean(same) > 0.95


def test_detection_does_not_change_with_the_calling_thread(grey_photograph: UInt8) -> None:
    image = from_array(grey_photograph)
    here = detect(image)
    there: list[Keypoints] = []
    thread = threading.Thread(target=lambda: there.append(detect(image)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(here.xy, there[0].xy)


def test_failures_on_the_detection_thread_reach_the_caller(
    monkeypatch: pytest.MonkeyPatch, pattern: UInt8
) -> None:
    def fail(*_: object) -> None:
        raise cv2.error("no memory")

    monkeypatch.setattr(module, "_dog", fail)
    with pytest.raises(cv2.error, match="no memory"):
        detect(from_array(pattern))


@pytest.mark.parametrize(
    "options",
    [
        {"max_keypoints": 0},
        {"max_keypoints": -5},
        {"contrast_threshold": math.nan},
        {"edge_threshold": 0.0},
    ],
)
def test_senseless_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidParameter):
        DetectOptions(**options)  # type: ignore[arg-type]


def test_angles_turn_with_the_image(grey_photograph: UInt8) -> None:
    first = detect(from_array(grey_photograph), DetectOptions(max_keypoints=300))
    turned = detect(from_array(np.rot90(grey_photograph)), DetectOptions(max_keypoints=3000))
    places = np.stack([first.xy[:, 1], 511 - first.xy[:, 0]], axis=1)
    # np.rot90 turns counter-clockwise, angles are clockwise.
    angles = (first.angle - math.pi / 2) % (2 * math.pi)
    agree = 0
    for place, angle in zip(places, angles, strict=True):
        near = np.linalg.norm(turned.xy - place, axis=1) < 0.5
        gap = np.abs((turned.angle[near] - angle + math.pi) % (2 * math.pi) - math.pi)
        agree += bool((gap < 0.05).any())
    assert agree / len(first) > 0.85


def test_an_image_keeps_its_arrays_read_only(pattern: UInt8) -> None:
    image = Image(pattern, (320, 240))
    with pytest.raises(ValueError, match="read-only"):
        image.grey[0, 0] = 1
