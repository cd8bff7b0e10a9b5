"""Benchmarks `pairs` and `phototour`: FPR95 on pairs of patches.

`pairs` draws 100,000 pairs from any patch store (half match, as `training.data.difficulty`
says). Several stores of the same classes, cut with different magnifications, may be given: each
model reads the one cut as its card says, and all see the same keypoints. `phototour` reads the
UBC sets and their own lists of pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.models.descriptor import Descriptor
from matchserve.models.handcrafted import NAMES as HANDCRAFTED
from matchserve.models.handcrafted import HandcraftedDescriptor
from matchserve.types import Bool, Float32
from training.data.difficulty import Pairs, sample_pairs
from training.data.phototour import PAIR_FILE, PhotoTour
from training.data.store import PatchStore
from training.errors import DataError
from training.evaluation.predictions import cached
from training.evaluation.protocol import (
    BenchmarkResult,
    Model,
    ModelResult,
    Options,
    stamp_of,
)
from training.metrics import fpr95

PAIRS = 100_000
# Fewer pairs of one scene do not give an FPR95 worth comparing.
_MIN_SCENE_PAIRS = 200
_BLOCK = 4096


def run(models: Iterable[Model], data: list[Path], options: Options) -> BenchmarkResult:
    """Measure FPR95 on pairs drawn from one set of classes."""
    stores = [PatchStore.open(path) for path in data]
    _check_same_classes(stores)
    pairs = sample_pairs(stores[0], options.limit or PAIRS, options.seed)
    scenes = _scene_of_patch(stores[0])[pairs.left]
    names = stores[0].scenes
    results = {}
    for model in models:
        store, descriptor = _choose(model, stores)
        distance = _distances(model, store, descriptor, pairs, options)
        results[model.name] = _score(distance, pairs.is_match, [names[s] for s in scenes], model)
    protocol = {"pairs": len(pairs.left), "seed": options.seed, "matching": 0.5}
    return BenchmarkResult("pairs", protocol, stores[0].digest, results)


def run_phototour(models: Iterable[Model], data: list[Path], options: Options) -> BenchmarkResult:
    """Measure FPR95 on the 100,000 pairs of each PhotoTour set given."""
    sets = [PhotoTour.open(path) for path in data]
    results = {}
    for model in models:
        figures, values = {}, []
        for tour in sets:
            pairs = tour.pairs()
            distance = _tour_distances(model, tour, pairs, options)
            values.append(fpr95(distance, pairs.is_match))
            figures[f"{tour.name}: fpr95"] = values[-1]
        units = tuple(tour.name for tour in sets)
        figures["fpr95"] = float(np.mean(values))
        results[model.name] = ModelResult(
            figures, units, units, {"fpr95": values}, stamp=model.stamp
        )
    digest = stamp_of(sets=[tour.digest for tour in sets])
    return BenchmarkResult("phototour", {"pairs": PAIR_FILE, "patch": 32}, digest, results)


def row_distance(left: NDArray[Any], right: NDArray[Any]) -> Float32:
    """Distance of each row of `left` to the same row of `right`: Euclidean, or bits."""
    if left.dtype == np.uint8:
        return np.asarray(np.bitwise_count(left ^ right).sum(axis=1), np.float32)
    return np.asarray(np.linalg.norm(left - right, axis=1), np.float32)


def describe_rows(
    descriptor: Descriptor, patches: NDArray[Any], indices: NDArray[np.int64]
) -> NDArray[Any]:
    """Describe the patches (P, S, S) at `indices`, in blocks that fit in memory."""
    blocks = [
        descriptor.describe_patches(np.asarray(patches[indices[at : at + _BLOCK]])[:, None])
        for at in range(0, len(indices), _BLOCK)
    ]
    return np.concatenate(blocks)


def _distances(
    model: Model, store: PatchStore, descriptor: Descriptor, pairs: Pairs, options: Options
) -> Float32:
    stamp = stamp_of(model=model.stamp, data=store.digest, pairs=len(pairs.left), seed=options.seed)
    path = options.cache / f"pairs-{model.name}-{stamp}.npz"
    return cached(path, lambda: _pair_distances(descriptor, store.pixels, pairs))["distance"]


def _tour_distances(model: Model, tour: PhotoTour, pairs: Pairs, options: Options) -> Float32:
    stamp = stamp_of(model=model.stamp, data=tour.digest)
    path = options.cache / f"phototour-{model.name}-{stamp}.npz"
    patches = tour.patches(np.arange(len(tour)), model.descriptor.card.patch.size)
    return cached(path, lambda: _pair_distances(model.descriptor, patches, pairs))["distance"]


def _pair_distances(
    descriptor: Descriptor, patches: NDArray[Any], pairs: Pairs
) -> dict[str, NDArray[Any]]:
    used, where = np.unique(np.concatenate([pairs.left, pairs.right]), return_inverse=True)
    rows = describe_rows(descriptor, patches, used)
    count = len(pairs.left)
    return {"distance": row_distance(rows[where[:count]], rows[where[count:]])}


def _choose(model: Model, stores: list[PatchStore]) -> tuple[PatchStore, Descriptor]:
    """The store cut as the model wants it; SIFT reads the one with most around its support."""
    if model.name in HANDCRAFTED:
        widest = max(stores, key=lambda store: store.spec.magnification)
        return widest, HandcraftedDescriptor(model.name, patch=widest.spec)
    wanted = model.descriptor.card.patch
    for store in stores:
        if store.spec == wanted:
            return store, model.descriptor
    have = ", ".join(f"K={s.spec.magnification:g} {s.spec.size} px" for s in stores)
    raise DataError(
        f"{model.name} needs patches of {wanted.size} px, K={wanted.magnification:g}; the stores "
        f"are {have}. `data recrop` makes one"
    )


def _check_same_classes(stores: list[PatchStore]) -> None:
    for store in stores[1:]:
        if not np.array_equal(store.offsets, stores[0].offsets):
            raise DataError(f"{store.path}: not the classes of {stores[0].path}")


def _scene_of_patch(store: PatchStore) -> NDArray[Any]:
    return np.repeat(store.class_scenes, np.diff(store.offsets))


def _score(distance: Float32, is_match: Bool, scenes: list[str], model: Model) -> ModelResult:
    """FPR95 of all pairs, and of each scene that has enough of them."""
    figures = {"fpr95": fpr95(distance, is_match)}
    named = np.array(scenes)
    units, values = [], []
    for scene in dict.fromkeys(scenes):
        own = named == scene
        if own.sum() >= _MIN_SCENE_PAIRS and 0 < is_match[own].sum() < own.sum():
            units.append(scene)
            values.append(fpr95(distance[own], is_match[own]))
    if 1 < len(units) <= 20:
        figures.update({f"{unit}: fpr95": value for unit, value in zip(units, values, strict=True)})
    return ModelResult(figures, tuple(units), tuple(units), {"fpr95": values}, stamp=model.stamp)
