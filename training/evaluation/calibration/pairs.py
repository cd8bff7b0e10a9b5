"""Choose image pairs that are known to show the same scene, or known not to.

Two images of a scene form a pair if they observe enough common 3D points of its reconstruction;
with fewer points their overlap is unknown, and they are left out. Pairs with fewer common points
are drawn more often, since easy neighbours would dominate otherwise. A photograph and a synthetic
view of it are also a pair of the same scene. Images of different scenes or photographs form the
pairs of different scenes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pycolmap
from numpy.random import Generator

from matchserve.types import Image
from matchserve.vision.decode import from_array
from training.data.images import list_images, read_image
from training.data.photos.views import DEFAULT_LEVELS, render, view_name
from training.data.scenes.build import find_scenes
from training.data.scenes.observations import read_cameras, read_points
from training.errors import DataError

Loader = Callable[[], Image]
_SamePair = tuple[str, str, str]  # two images and their scene

# With fewer common points it is uncertain whether two images of a scene overlap.
MIN_SHARED_POINTS = 30
_SHARE_OF_VIEWS = 1 / 3
_MAX_SIDE = 1024


@dataclass(frozen=True, slots=True)
class Setting:
    """The options of a request that change the number of matches.

    `is_raw` stands for all mutual nearest neighbours, without confidence and refinement.
    """

    max_keypoints: int
    ratio: float | None
    is_raw: bool = False


def all_settings(keypoints: Sequence[int], ratios: Sequence[float]) -> tuple[Setting, ...]:
    """Return the default pipeline without and with ratio tests, and raw matches."""
    limits: tuple[float | None, ...] = (None, *ratios)
    judged = tuple(Setting(count, limit) for count in keypoints for limit in limits)
    return (*judged, *(Setting(count, None, is_raw=True) for count in keypoints))


@dataclass(frozen=True, slots=True)
class ImagePair:
    """Two images, the scene of each, and the setting they are matched with.

    A single photograph is a scene of its own.
    """

    images: tuple[str, str]
    scenes: tuple[str, str]
    setting: Setting

    @property
    def is_same(self) -> bool:
        """Whether both images show the same scene."""
        return self.scenes[0] == self.scenes[1]


@dataclass(frozen=True, slots=True, eq=False)
class PairSet:
    """Labelled pairs, loaders of their images, and the names of the multi-view scenes."""

    images: Mapping[str, Loader]
    pairs: Sequence[ImagePair]
    multi_view: frozenset[str]


@dataclass(frozen=True, slots=True)
class PairOptions:
    """How many pairs to choose: `same` of the same scene, and a multiple of different scenes."""

    same: int = 400
    different_per_same: int = 5
    settings: tuple[Setting, ...] = field(
        default_factory=lambda: all_settings((512, 2048), (0.85,))
    )
    seed: int = 0


def choose_pairs(
    scenes: Sequence[Path], workspace: Path, photos: Sequence[Path], options: PairOptions
) -> PairSet:
    """Choose pairs among the scenes reconstructed in `workspace` and among photographs.

    Raises:
        DataError: a folder is missing, a scene was not reconstructed, or there are too few scenes.
    """
    rng = np.random.default_rng(options.seed)
    multi_view = find_scenes(scenes)
    views = round(options.same * _SHARE_OF_VIEWS) if photos else 0
    images: dict[str, Loader] = {
        name: partial(read_image, path)
        for scene_images in multi_view.values()
        for name, path in scene_images.items()
    }
    same = _scene_pairs(multi_view, workspace, options.same - views, rng)
    if photos:
        viewed, view_images = _view_pairs(list_images(photos), views, options.seed, rng)
        same += viewed
        images |= view_images
    if len({scene for *_, scene in same}) < 2:
        raise DataError("pairs of different scenes need at least two scenes or photographs")
    settings = itertools.cycle(options.settings)
    pairs = [ImagePair((a, b), (scene, scene), next(settings)) for a, b, scene in same]
    different = _different_pairs(pairs, frozenset(multi_view), options, rng)
    return PairSet(images, [*pairs, *different], frozenset(multi_view))


def shared_points(workspace: Path) -> dict[tuple[str, str], int]:
    """Return the number of common 3D points of each pair of registered images of a scene.

    Raises:
        DataError: there is no reconstruction in `workspace`.
    """
    sparse = workspace / "sparse"
    if not (sparse / "points3D.bin").is_file():
        raise DataError(f"{sparse}: no reconstruction; run `data scenes --workspace` first")
    model = pycolmap.Reconstruction(sparse)
    cameras = read_cameras(model)
    xyz, elements = read_points(model, cameras)
    is_observed = np.zeros((len(xyz), len(cameras)), np.float32)
    is_observed[elements[:, 0], elements[:, 1]] = 1
    shared = is_observed.T @ is_observed
    names = [camera.name for camera in cameras]
    return {
        (names[i], names[j]): int(shared[i, j])
        for i, j in itertools.combinations(range(len(names)), 2)
    }


def _scene_pairs(
    scenes: Mapping[str, Mapping[str, Path]], workspace: Path, count: int, rng: Generator
) -> list[_SamePair]:
    """Draw about equally many pairs of each scene, preferring pairs with few common points."""
    known: dict[str, dict[tuple[str, str], int]] = {}
    for scene, images in scenes.items():
        shared = shared_points(workspace / scene)
        if not any(name in images for pair in shared for name in pair):
            raise DataError(f"{workspace / scene}: this is a reconstruction of other images")
        known[scene] = {
            pair: points
            for pair, points in shared.items()
            if points >= MIN_SHARED_POINTS and pair[0] in images and pair[1] in images
        }
    chosen = []
    quotas = _equal_shares([len(pairs) for pairs in known.values()], count)
    for (scene, pairs), quota in zip(known.items(), quotas, strict=True):
        weight = 1 / np.sqrt(list(pairs.values()))
        rows = (
            rng.choice(len(pairs), quota, replace=False, p=weight / weight.sum()) if quota else ()
        )
        listed = list(pairs)
        chosen += [(*listed[row], scene) for row in rows]
    return chosen


def _view_pairs(
    photos: Mapping[str, Path], count: int, seed: int, rng: Generator
) -> tuple[list[_SamePair], dict[str, Loader]]:
    """Draw photographs and pair each with one synthetic view of random level."""
    names = list(photos)
    pairs: list[_SamePair] = []
    images: dict[str, Loader] = {}
    for row in rng.permutation(len(names))[:count]:
        name = names[row]
        index = int(rng.integers(len(DEFAULT_LEVELS)))
        view = view_name(name, index + 1)
        images[name] = partial(read_image, photos[name], _MAX_SIDE)
        images[view] = partial(_render, photos[name], name, index, seed)
        pairs.append((name, view, name))
    return pairs, images


def _render(path: Path, name: str, index: int, seed: int) -> Image:
    grey = read_image(path, _MAX_SIDE).grey
    view = render(grey, name, index + 1, seed=seed, level=DEFAULT_LEVELS[index])
    return from_array(view.grey)


def _different_pairs(
    same: Sequence[ImagePair], multi_view: frozenset[str], options: PairOptions, rng: Generator
) -> list[ImagePair]:
    """Pair images of `same` across different scenes, as many as `options` says.

    Using only these images means that no other image has to be described.
    """
    drawn: dict[tuple[str, ...], ImagePair] = {}
    per_setting = len(same) * options.different_per_same // len(options.settings)
    kinds = list(itertools.combinations_with_replacement(_pools(same, multi_view), 2))
    for setting in options.settings:
        wanted = len(drawn) + per_setting
        # A small set may have fewer pairs than wanted: stop after many attempts.
        for attempt in range(20 * per_setting):
            if len(drawn) == wanted:
                break
            one, other = (_pick(pool, rng) for pool in kinds[attempt % len(kinds)])
            key = (*sorted((one[0], other[0])), str(setting))
            if one[1] != other[1] and key not in drawn:
                drawn[key] = ImagePair((one[0], other[0]), (one[1], other[1]), setting)
    return list(drawn.values())


_Pool = dict[str, list[str]]


def _pools(same: Sequence[ImagePair], multi_view: frozenset[str]) -> list[_Pool]:
    """Return images by scene: those of multi-view scenes, and photographs with their views."""
    pools: tuple[_Pool, _Pool] = ({}, {})
    for pair in same:
        pool = pools[0] if pair.scenes[0] in multi_view else pools[1]
        pool.setdefault(pair.scenes[0], []).extend(pair.images)
    return [pool for pool in pools if pool]


def _pick(pool: _Pool, rng: Generator) -> tuple[str, str]:
    """Draw an image and its scene; all scenes are equally likely, whatever their size."""
    scene = list(pool)[rng.integers(len(pool))]
    return pool[scene][rng.integers(len(pool[scene]))], scene


def _equal_shares(available: Sequence[int], count: int) -> list[int]:
    """Divide `count` as equally as the `available` numbers allow."""
    shares = [0] * len(available)
    for _ in range(min(count, sum(available))):
        not_full = [i for i, most in enumerate(available) if shares[i] < most]
        shares[min(not_full, key=lambda i: shares[i])] += 1
    return shares
