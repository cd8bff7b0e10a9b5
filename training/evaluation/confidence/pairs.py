"""Pairs of images with known geometry, to learn from which matches are right.

Pairs of reconstructed scenes, photographs with a generated view, registered pairs of changed
appearance (folders with `1.*`, `2.*` and `H_1_2`), and pairs of unrelated images.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pycolmap
from numpy.random import Generator

from matchserve.types import Image
from matchserve.vision.decode import from_array
from training.data.images import SUFFIXES, list_images, read_image
from training.data.photos.views import render
from training.data.scenes.build import find_scenes
from training.data.scenes.observations import read_cameras, read_points
from training.errors import DataError
from training.evaluation.confidence.truth import (
    CameraTruth,
    HomographyTruth,
    Truth,
    unrelated_error,
)

Loader = Callable[[], Image]

# Fewer points shared by two images leave it open how deep most of the overlap is.
_MIN_SHARED_POINTS = 12
_MAX_SIDE = 1024
_LEVELS = ("easy", "medium", "hard", "hard", "night")
_KEYPOINTS = (2048, 512, 2048, 2048)
_UPRIGHT_SHARE = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class LabelledPair:
    """Two images with loaders, the scene of each, the truth, and how the pair is matched."""

    names: tuple[str, str]
    loaders: tuple[Loader, Loader]
    scenes: tuple[str, str]
    truth: Truth
    kind: str
    max_keypoints: int = 2048
    is_upright: bool = False


@dataclass(frozen=True, slots=True)
class PairCounts:
    """How many pairs of each kind: for each scene, views, registered pairs, unrelated ones."""

    per_scene: int = 20
    views: int = 100
    registered: int = 70
    unrelated: int = 70


def choose_pairs(
    scenes: Sequence[Path],
    workspace: Path,
    photos: Sequence[Path],
    registered: Sequence[Path],
    counts: PairCounts,
    seed: int,
) -> list[LabelledPair]:
    """Choose pairs of every kind; scenes without a reconstruction in `workspace` are an error.

    Raises:
        DataError: a folder is missing, or a scene was not reconstructed.
    """
    rng = np.random.default_rng(seed)
    pairs = [
        pair
        for scene, images in find_scenes(scenes).items()
        for pair in _scene_pairs(scene, images, workspace / scene, counts.per_scene, rng)
    ]
    if photos:
        pairs += _view_pairs(photos, counts.views, seed, rng)
    for folder in registered:
        pairs += _registered_pairs(folder, counts.registered // len(registered), rng)
    pairs += _unrelated_pairs(pairs, counts.unrelated, rng)
    return [
        LabelledPair(
            *(pair.names, pair.loaders, pair.scenes, pair.truth, pair.kind),
            max_keypoints=_KEYPOINTS[number % len(_KEYPOINTS)],
            is_upright=bool(rng.random() < _UPRIGHT_SHARE),
        )
        for number, pair in enumerate(pairs)
    ]


def _scene_pairs(
    scene: str, images: dict[str, Path], workspace: Path, count: int, rng: Generator
) -> list[LabelledPair]:
    """Pairs of a reconstructed scene: the fewer points two images share, the likelier."""
    if not (workspace / "sparse" / "points3D.bin").is_file():
        raise DataError(f"{workspace}: no reconstruction; `data scenes --workspace` makes it")
    model = pycolmap.Reconstruction(workspace / "sparse")
    cameras = read_cameras(model)
    xyz, seen = read_points(model, cameras)
    sees = np.zeros((len(xyz), len(cameras)), np.bool_)
    sees[seen[:, 0], seen[:, 1]] = True
    shared = sees.T.astype(np.float32) @ sees.astype(np.float32)
    candidates = [
        (i, j)
        for i, j in itertools.combinations(range(len(cameras)), 2)
        if shared[i, j] >= _MIN_SHARED_POINTS
    ]
    weight = np.array([shared[pair] ** -0.5 for pair in candidates])
    chosen = rng.choice(
        len(candidates), min(count, len(candidates)), replace=False, p=weight / weight.sum()
    )
    pairs = []
    for i, j in (candidates[row] for row in chosen):
        names = (cameras[i].name, cameras[j].name)
        truth = CameraTruth((cameras[i], cameras[j]), (xyz[sees[:, i]], xyz[sees[:, j]]))
        loaders = (partial(read_image, images[names[0]]), partial(read_image, images[names[1]]))
        pairs.append(LabelledPair(names, loaders, (scene, scene), truth, "scene"))
    return pairs


def _view_pairs(
    photos: Sequence[Path], count: int, seed: int, rng: Generator
) -> list[LabelledPair]:
    """Photographs with one generated view each; in half of the pairs the view comes first."""
    found = list_images(photos)
    pairs = []
    for name in rng.permutation(list(found))[:count].tolist():
        level = str(rng.choice(_LEVELS))
        view = render(
            np.asarray(read_image(found[name], _MAX_SIDE).grey), name, 1, seed=seed, level=level
        )
        photo = partial(read_image, found[name], _MAX_SIDE)
        pair = LabelledPair(
            (name, f"{name}#{level}"),
            (photo, partial(_drawn, found[name], name, level, seed)),
            (name, name),
            HomographyTruth(view.homography),
            "view",
        )
        pairs.append(_swapped(pair) if rng.random() < 0.5 else pair)
    return pairs


def _registered_pairs(folder: Path, count: int, rng: Generator) -> list[LabelledPair]:
    """Pairs `1`, `2` with `H_1_2` in folders below `folder`."""
    places = sorted(path.parent for path in folder.rglob("H_1_2"))
    if not places:
        raise DataError(f"{folder}: no folder with 1, 2 and H_1_2")
    pairs = []
    for row in rng.permutation(len(places))[:count]:
        place = places[row]
        files = [_numbered(place, number) for number in (1, 2)]
        name = f"{folder.name}/{place.relative_to(folder).as_posix()}"
        pair = LabelledPair(
            (f"{name}/1", f"{name}/2"),
            (partial(read_image, files[0]), partial(read_image, files[1])),
            (name, name),
            HomographyTruth(np.loadtxt(place / "H_1_2")),
            "registered",
        )
        pairs.append(_swapped(pair) if rng.random() < 0.5 else pair)
    return pairs


def _unrelated_pairs(
    pairs: Sequence[LabelledPair], count: int, rng: Generator
) -> list[LabelledPair]:
    """Images of two pairs put together anew, across scenes."""
    made: list[LabelledPair] = []
    if len({pair.scenes[0] for pair in pairs}) < 2:
        return made
    while len(made) < count:
        one, other = (pairs[int(rng.integers(len(pairs)))] for _ in range(2))
        if one.scenes[0] != other.scenes[0]:
            made.append(
                LabelledPair(
                    (one.names[0], other.names[1]),
                    (one.loaders[0], other.loaders[1]),
                    (one.scenes[0], other.scenes[1]),
                    unrelated_error,
                    "unrelated",
                )
            )
    return made


def _swapped(pair: LabelledPair) -> LabelledPair:
    """The same pair of a homography with image 1 first."""
    if not isinstance(pair.truth, HomographyTruth):
        raise TypeError("only a homography is swapped by its inverse")
    truth = HomographyTruth(np.asarray(np.linalg.inv(pair.truth.matrix), np.float64))
    return LabelledPair(pair.names[::-1], pair.loaders[::-1], pair.scenes, truth, pair.kind)


def _drawn(path: Path, name: str, level: str, seed: int) -> Image:
    grey = np.asarray(read_image(path, _MAX_SIDE).grey)
    return from_array(render(grey, name, 1, seed=seed, level=level).grey)


def _numbered(place: Path, number: int) -> Path:
    for suffix in SUFFIXES:
        if (place / f"{number}{suffix}").is_file():
            return place / f"{number}{suffix}"
    raise DataError(f"{place}: no image {number}")
