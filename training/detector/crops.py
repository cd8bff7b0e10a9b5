"""Crops of images in pairs, with the homography from the first to the second: the training data.

A pair is a part of a photograph with a generated view of it, or two parts of a registered pair.
Coordinates are of pixel centres.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

import cv2
import numpy as np
from numpy.random import Generator

from matchserve.archives import ARCHIVE_ERRORS
from matchserve.files import open_whole
from matchserve.models.model_files import sha256_hex
from matchserve.types import Bool, Float64, UInt8
from training.data.images import list_images, read_image
from training.data.modal.pairs import RegisteredPair, find_pairs
from training.data.parallel import in_processes
from training.data.photos import views
from training.data.photos.relight import relight
from training.detector.losses import Relation
from training.errors import DataError

SIDE = 240
# Less zoom than between photographs: the levels of the pyramid take over the rest.
_VIEW = views.Level(tilt_deg=40, turn_deg=180, zoom=0.4, light=0.8)
_NIGHT_SHARE = 0.15
_FACTORS = (0.6, 1.4)
_MARGIN = 4  # pixels beside the border of an image whose scores depend much on what is beyond


@dataclass(frozen=True, slots=True)
class CropOptions:
    """How many crops are made of what.

    `per_megapixel` counts the crops of a photograph by its size (at least one is made), `per_pair`
    those of a registered pair. Photographs and registered pairs whose names match one of
    `hold_out` are left out, and the last of every `hold_out_every` photographs of a folder.
    """

    per_megapixel: float = 12.0
    per_pair: int = 6
    hold_out: tuple[str, ...] = ()
    hold_out_every: int = 0
    max_side: int = 1024
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Crops:
    """Pairs of crops (N, 2, S, S) and homographies (N, 3, 3) from the first to the second.

    `masks` (N, 2, S * S / 8) are the bits of the pixels that lie in the images; what is beyond
    them is mirrored, each image in its own way. `made_of` counts the crops of each folder, and
    `sha256` is the checksum of the file.
    """

    pixels: UInt8
    masks: UInt8
    homographies: Float64
    made_of: dict[str, int]
    sha256: str = ""

    def relation(self, row: int) -> Relation:
        """Return how the two crops of a row are related."""
        pair = self.pixels[row]
        masks = np.unpackbits(self.masks[row], axis=1).reshape(pair.shape).astype(np.bool_)
        return Relation(self.homographies[row], (masks[0], masks[1]))

    def __len__(self) -> int:
        return len(self.pixels)


@dataclass(frozen=True, slots=True)
class _Photo:
    name: str
    path: Path
    options: CropOptions


@dataclass(frozen=True, slots=True)
class _Registered:
    pair: RegisteredPair
    options: CropOptions


_Task = _Photo | _Registered
_Crop = tuple[UInt8, Bool, Float64]  # pixels and masks (2, S, S), homography


def write_crops(
    photos: Sequence[Path],
    registered: Sequence[Path],
    path: Path,
    options: CropOptions,
    workers: int | None = None,
) -> dict[str, int]:
    """Write crops of photographs and of registered pairs; return the number made of each folder.

    Raises:
        DataError: a folder is missing or has no image, or everything is held out.
    """
    tasks: list[_Task] = [*_photos(photos, options), *_registered(registered, options)]
    if not tasks:
        raise DataError("no photograph and no registered pair is left to cut crops from")
    made: list[_Crop] = []
    made_of: dict[str, int] = {}
    for folder, found in in_processes(_run, tasks, workers=workers, label="crops"):
        made_of[folder] = made_of.get(folder, 0) + len(found)
        made += found
    order = np.random.default_rng(options.seed).permutation(len(made))
    with open_whole(path) as file:
        np.savez(
            file,
            crops=np.stack([made[row][0] for row in order]),
            masks=np.stack([np.packbits(made[row][1].reshape(2, -1), axis=1) for row in order]),
            homographies=np.stack([made[row][2] for row in order]),
            folders=np.array(list(made_of)),
            counts=np.array(list(made_of.values())),
        )
    return made_of


def read_crops(path: Path) -> Crops:
    """Read a file that `write_crops` wrote.

    Raises:
        DataError: the file is missing, damaged, or its arrays do not fit together.
    """
    try:
        data = path.read_bytes()
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            pixels, masks, homographies = file["crops"], file["masks"], file["homographies"]
            made_of = dict(zip(file["folders"].tolist(), file["counts"].tolist(), strict=True))
    except ARCHIVE_ERRORS as error:
        raise DataError(f"{path}: not a file of crops: {error}") from error
    is_whole = pixels.ndim == 4 and pixels.shape[1] == 2 and pixels.shape[2] == pixels.shape[3]
    if pixels.dtype != np.uint8 or not is_whole or not len(pixels):
        raise DataError(f"{path}: expected uint8 crops (N, 2, S, S), got {pixels.shape}")
    if masks.dtype != np.uint8 or masks.shape != (len(pixels), 2, -(-pixels[0, 0].size // 8)):
        raise DataError(f"{path}: expected the bits of a mask for each crop, got {masks.shape}")
    if homographies.shape != (len(pixels), 3, 3) or not np.isfinite(homographies).all():
        raise DataError(f"{path}: expected {len(pixels)} finite homographies (N, 3, 3)")
    return Crops(pixels, masks, homographies.astype(np.float64), made_of, sha256_hex(data))


def _photos(directories: Sequence[Path], options: CropOptions) -> Iterator[_Photo]:
    for directory in directories:
        for number, (name, path) in enumerate(list_images([directory]).items(), start=1):
            is_last = options.hold_out_every > 0 and number % options.hold_out_every == 0
            if not is_last and not _is_held_out(name, options):
                yield _Photo(name, path, options)


def _registered(directories: Sequence[Path], options: CropOptions) -> Iterator[_Registered]:
    for pair in find_pairs(directories):
        if not _is_held_out(pair.name, options):
            yield _Registered(pair, options)


def _is_held_out(name: str, options: CropOptions) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in options.hold_out)


def _run(task: _Task) -> tuple[str, list[_Crop]]:
    name = task.name if isinstance(task, _Photo) else task.pair.name
    rng = np.random.default_rng([task.options.seed, zlib.crc32(name.encode())])
    made = _of_photo(task, rng) if isinstance(task, _Photo) else _of_pair(task, rng)
    return name.split("/")[0], list(made)


def _of_photo(task: _Photo, rng: Generator) -> Iterator[_Crop]:
    grey = np.asarray(read_image(task.path, task.options.max_side).grey)
    count = max(1, round(task.options.per_megapixel * grey.size / 1e6))
    for _ in range(count):
        part = _part(_reduced(grey, rng), rng)
        homography = views.random_homography(part.shape, _VIEW, rng)
        warped = views.warp(part, homography)
        one = relight(part, rng, strength=0.4)
        is_night = bool(rng.random() < _NIGHT_SHARE)
        other = relight(warped, rng, strength=_VIEW.light, is_night=is_night)
        # Of the view, the pixels beyond the part are known from the homography.
        yield np.stack([one, other]), np.ones((2, SIDE, SIDE), np.bool_), homography


def _of_pair(task: _Registered, rng: Generator) -> Iterator[_Crop]:
    # At their own size: the homography is in its pixels.
    one, other = (np.asarray(read_image(path).grey) for path in task.pair.paths)
    for _ in range(task.options.per_pair):
        yield _cut_both(one, other, task.pair.homography, rng)


def _cut_both(one: UInt8, other: UInt8, truth: Float64, rng: Generator) -> _Crop:
    """Cut a part of image 1, and the part of image 2 around the same place and of its scale."""
    # Small images are enlarged until a crop fits.
    least = max(_FACTORS[0], SIDE / min(one.shape))
    factor = float(rng.uniform(least, max(least, _FACTORS[1]) + 1e-6))
    size = np.array(one.shape[::-1])
    at = rng.uniform(SIDE / factor / 2, size - SIDE / factor / 2)
    turn = float(rng.uniform(-np.pi, np.pi))
    first = _placed(at, factor, 0.0)
    there = truth @ [*at, 1]
    zoom = _zoom_at(truth, there[2])
    jitter = float(2 ** rng.uniform(-0.3, 0.3))
    second = _placed(there[:2] / there[2], factor / zoom * jitter, turn)
    homography = second @ truth @ np.linalg.inv(first)
    pixels = np.stack([_cut(one, first), _cut(other, second)])
    masks = np.stack([_mask(one.shape, first), _mask(other.shape, second)])
    return pixels, masks, homography / homography[2, 2]


def _zoom_at(homography: Float64, weight: float) -> float:
    return float(np.sqrt(abs(np.linalg.det(homography)) / abs(weight) ** 3))


def _placed(at: Float64, factor: float, turn: float) -> Float64:
    """Return the similarity that moves `at` to the middle of a crop."""
    cosine, sine = factor * np.cos(turn), factor * np.sin(turn)
    middle = np.full(2, (SIDE - 1) / 2)
    linear = np.array([[cosine, -sine], [sine, cosine]])
    return np.block([[linear, (middle - linear @ at)[:, None]], [np.zeros((1, 2)), np.ones(1)]])


def _cut(grey: UInt8, placed: Float64) -> UInt8:
    zoom = float(np.sqrt(np.linalg.det(placed[:2, :2])))
    source = _blurred_for(grey, zoom)
    cut = cv2.warpPerspective(
        source, placed, (SIDE, SIDE), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT
    )
    return np.asarray(cut, np.uint8)


def _mask(shape: tuple[int, ...], placed: Float64) -> Bool:
    """Return where a crop shows the image, and not what is beyond its border."""
    whole = np.full(shape, 255, np.uint8)
    inside = cv2.warpPerspective(whole, placed, (SIDE, SIDE)) == 255
    kernel = np.ones((2 * _MARGIN + 1,) * 2, np.uint8)
    return np.asarray(cv2.erode(inside.astype(np.uint8), kernel, borderValue=1), np.bool_)


def _blurred_for(grey: UInt8, zoom: float) -> UInt8:
    """Return the image with the blur of the larger pixels, minus the blur that it has."""
    if zoom >= 0.9:
        return grey
    return np.asarray(cv2.GaussianBlur(grey, (0, 0), 0.5 * np.sqrt(1 / zoom**2 - 1)), np.uint8)


def _reduced(grey: UInt8, rng: Generator) -> UInt8:
    """Return the image at a random scale, as a level of a pyramid would be."""
    least = float(np.log2(SIDE / min(grey.shape)))
    factor = 2 ** float(rng.uniform(max(-1.5, least), max(0.0, least) + 1e-6))
    width, height = (max(SIDE, round(factor * side)) for side in grey.shape[::-1])
    source = _blurred_for(grey, factor)
    resized = cv2.resize(source, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.asarray(resized, np.uint8)


def _part(grey: UInt8, rng: Generator) -> UInt8:
    top, left = (int(rng.integers(0, side - SIDE + 1)) for side in grey.shape)
    return cast(UInt8, np.ascontiguousarray(grey[top : top + SIDE, left : left + SIDE]))
