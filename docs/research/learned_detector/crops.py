"""Crops of training images in pairs: what the network that finds its own keypoints learns from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.random import Generator
from pairs import FIRST_HELD_OUT, LARGE_SETS, MAX_SIDE, MODAL_KINDS, PHOTO_SETS, held_out

from matchserve.types import Float64, UInt8
from training.data.images import list_images, numbered_image, read_image
from training.data.photos import views
from training.data.photos.relight import relight

SIDE = 240
_PER_LARGE_PHOTO, _PER_SMALL_PHOTO = 6, 1
# Less zoom than between photographs: the levels of the pyramid take over the rest.
_LEVEL = views.Level(tilt_deg=40, turn_deg=180, zoom=0.4, light=0.8)


def write_crops(train: Path, path: Path, per_modal_pair: int, seed: int = 0) -> int:
    """Write pairs of crops (N, 2, SIDE, SIDE) and homographies (N, 3, 3); return their number."""
    rng = np.random.default_rng(seed)
    made = [*_of_photos(train / "photos", rng), *_of_modal(train / "modal", per_modal_pair, rng)]
    order = rng.permutation(len(made))
    np.savez(
        path,
        crops=np.stack([np.stack(made[row][0]) for row in order]),
        homographies=np.stack([made[row][1] for row in order]),
    )
    return len(made)


Crops = tuple[tuple[UInt8, UInt8], Float64]


def _of_photos(photos: Path, rng: Generator) -> Iterator[Crops]:
    for name in PHOTO_SETS:
        kept_apart = held_out(photos, name)
        count = _PER_LARGE_PHOTO if name in LARGE_SETS else _PER_SMALL_PHOTO
        for photo, path in list_images([photos / name]).items():
            if photo in kept_apart:
                continue
            grey = np.asarray(read_image(path, MAX_SIDE).grey)
            for _ in range(count):
                yield _view(_part(_reduced(grey, rng), rng), rng)


def _view(part: UInt8, rng: Generator) -> Crops:
    homography = views._homography(part.shape, _LEVEL, rng)
    warped = views.warp(part, homography)
    one = relight(part, rng, strength=0.4)
    other = relight(warped, rng, strength=_LEVEL.light, is_night=bool(rng.random() < 0.15))
    return (one, other), homography


def _of_modal(modal: Path, count: int, rng: Generator) -> Iterator[Crops]:
    for kind in MODAL_KINDS:
        for number in range(1, FIRST_HELD_OUT):
            folder = modal / kind / f"{number:03d}"
            one, other = (
                np.asarray(read_image(numbered_image(folder, side)).grey) for side in (1, 2)
            )
            truth = np.loadtxt(folder / "H_1_2")
            for _ in range(count):
                factor = float(rng.uniform(0.6, 1.4))
                yield _registered(one, other, truth, factor, rng)


def _registered(one: UInt8, other: UInt8, truth: Float64, factor: float, rng: Generator) -> Crops:
    """Cut a part of image 1, and the part of image 2 around the same place and of its scale."""
    at = rng.uniform(0.25, 0.75, 2) * one.shape[::-1]
    turn = float(rng.uniform(-np.pi, np.pi))
    first = _placed(at, factor, 0.0)
    there = truth @ [*at, 1]
    zoom = float(np.sqrt(np.linalg.det(truth[:2, :2])))
    jitter = float(2 ** rng.uniform(-0.3, 0.3))
    second = _placed(there[:2] / there[2], factor / zoom * jitter, turn)
    return (_cut(one, first), _cut(other, second)), second @ truth @ np.linalg.inv(first)


def _placed(at: Float64, factor: float, turn: float) -> Float64:
    """Return the similarity that moves `at` to the middle of a crop."""
    cosine, sine = factor * np.cos(turn), factor * np.sin(turn)
    middle = np.full(2, (SIDE - 1) / 2)
    linear = np.array([[cosine, -sine], [sine, cosine]])
    return np.block([[linear, (middle - linear @ at)[:, None]], [np.zeros((1, 2)), np.ones(1)]])


def _cut(grey: UInt8, placed: Float64) -> UInt8:
    zoom = float(np.sqrt(np.linalg.det(placed[:2, :2])))
    if zoom < 0.9:
        grey = np.asarray(cv2.GaussianBlur(grey, (0, 0), 0.5 * np.sqrt(1 / zoom**2 - 1)), np.uint8)
    border = cv2.BORDER_REFLECT
    size = (SIDE, SIDE)
    cut = cv2.warpPerspective(grey, placed, size, flags=cv2.INTER_CUBIC, borderMode=border)
    return np.asarray(cut, np.uint8)


def _reduced(grey: UInt8, rng: Generator) -> UInt8:
    """Return the image at a random scale, as a level of a pyramid would be."""
    least = SIDE / min(grey.shape)
    factor = 2 ** float(rng.uniform(max(-1.5, np.log2(least)), max(0.0, np.log2(least)) + 1e-6))
    size = [max(SIDE, round(factor * side)) for side in grey.shape[::-1]]
    if factor < 0.9:
        grey = np.asarray(cv2.GaussianBlur(grey, (0, 0), 0.5 * np.sqrt(1 / factor**2 - 1)))
    return np.asarray(cv2.resize(grey, size, interpolation=cv2.INTER_LINEAR), np.uint8)


def _part(grey: UInt8, rng: Generator) -> UInt8:
    top, left = (int(rng.integers(0, side - SIDE + 1)) for side in grey.shape)
    return np.ascontiguousarray(grey[top : top + SIDE, left : left + SIDE])
