"""Pairs of training images with known homographies, and which photographs are held out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from matchserve.types import Float64, Image
from matchserve.vision.decode import from_array
from training.data.images import list_images, numbered_image, read_image
from training.data.photos.views import render

LARGE_SETS = ("urban100", "sunhays80")
MODAL_KINDS = ("time", "night", "infrared")
FIRST_HELD_OUT = 121  # of the registered pairs of each kind, to 140
MAX_SIDE = 1024
_LEVELS = ("easy", "medium", "medium", "hard", "night")
_HELD_OUT_STEP = 10


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Two images and the homography from the first to the second, in pixel-centre coordinates."""

    name: str
    images: tuple[Image, Image]
    homography: Float64


def held_out(photos: Path, name: str) -> dict[str, Path]:
    """Return every tenth photograph of a set, by name: none of them is learned from."""
    found = list_images([photos / name])
    return dict(list(found.items())[_HELD_OUT_STEP - 1 :: _HELD_OUT_STEP])


def training_pairs(train: Path, views: int, modal: int, seed: int = 0) -> Iterator[Pair]:
    """Yield pairs of photographs and views, and `modal` registered pairs of each kind."""
    yield from _views(train / "photos", views, seed)
    for kind in MODAL_KINDS:
        for number in range(1, min(modal, FIRST_HELD_OUT - 1) + 1):
            folder = train / "modal" / kind / f"{number:03d}"
            images = [read_image(numbered_image(folder, side)) for side in (1, 2)]
            homography = np.loadtxt(folder / "H_1_2")
            yield Pair(f"{kind}/{number:03d}", (images[0], images[1]), homography)


def _views(photos: Path, count: int, seed: int) -> Iterator[Pair]:
    # Only the large photographs have many more keypoints than are chosen.
    found = {}
    for name in LARGE_SETS:
        kept_apart = held_out(photos, name)
        found |= {k: v for k, v in list_images([photos / name]).items() if k not in kept_apart}
    chosen = np.random.default_rng(seed).permutation(list(found))[:count].tolist()
    for number, name in enumerate(chosen):
        path = found[name]
        image = read_image(path, MAX_SIDE)
        level = _LEVELS[number % len(_LEVELS)]
        view = render(np.asarray(image.grey), name, 1, seed=seed, level=level)
        yield Pair(f"{name}#{level}", (image, from_array(view.grey)), view.homography)
