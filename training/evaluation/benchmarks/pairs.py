"""Benchmarks `pairs` and `phototour`: FPR95 on pairs of patches.

`pairs` draws 100,000 pairs from any patch store (half match, as `training.data.difficulty`
says). Several stores of the same classes, cut with different magnifications, may be given: each
model reads the one cut as its card says, and all see the same keypoints. FPR95 on random pairs
says little once it is near zero, so the matching pairs are also matched as the service would: up
to 2048 left against as many right patches of one scene, by mutual nearest neighbour. `phototour`
reads the UBC sets and their own lists of pairs.
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
from matchserve.vision.matching import mutual_nn
from training.data.public.phototour import PAIR_FILE, PhotoTour
from training.data.store.difficulty import Pairs, sample_pairs
from training.data.store.reader import PatchStore
from training.errors import DataError
from training.evaluation.predictions import cached
from training.evaluation.protocol import (
    BenchmarkResult,
    Model,
    ModelResult,
    Options,
    stamp_of,
)
from training.metrics.patch_pairs import fpr95

PAIRS = 100_000
# Fewer pairs of one scene do not give an FPR95 worth comparing.
_MIN_SCENE_PAIRS = 200
_BLOCK = 4096
# Patches matched against each other: the keypoints of one image at the default settings.
_CROWD = 2048


def run(models: Iterable[Model], data: list[Path], options: Options) -> BenchmarkResult:
    """Measure FPR95 on pairs drawn from one set of classes."""
    stores = [PatchStore.open(path) for path in data]
    _check_same_classes(stores)
    pairs = sample_pairs(stores[0], options.limit or PAIRS, options.seed)
    classes = np.repeat(np.arange(len(stores[0].class_scenes)), np.diff(stores[0].offsets))
    scenes = stores[0].class_scenes[classes[pairs.left]]
    crowds = _crowds(np.flatnonzero(pairs.is_match), scenes)
    names = [stores[0].scenes[s] for s in scenes]
    results = {}
    for model in models:
        store, descriptor = _choose(model, stores)
        found = _predict(model, store, descriptor, pairs, (crowds, classes), options)
        results[model.name] = _score(found, pairs.is_match, names, model)
    protocol = {"pairs": len(pairs.left), "seed": options.seed, "matching": 0.5, "crowd": _CROWD}
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


def _crowds(matching: NDArray[np.int64], scenes: NDArray[Any]) -> list[NDArray[np.int64]]:
    """The matching pairs of each scene, in lists of at most `_CROWD`."""
    crowds = []
    for scene in np.unique(scenes[matching]):
        own = matching[scenes[matching] == scene]
        crowds += np.array_split(own, -(-len(own) // _CROWD))
    return crowds


def _predict(
    model: Model,
    store: PatchStore,
    descriptor: Descriptor,
    pairs: Pairs,
    crowds: tuple[list[NDArray[np.int64]], NDArray[np.int64]],
    options: Options,
) -> dict[str, NDArray[Any]]:
    stamp = stamp_of(
        model=model.stamp,
        data=store.digest,
        pairs=len(pairs.left),
        seed=options.seed,
        crowd=_CROWD,
    )
    path = options.cache / f"pairs-{model.name}-{stamp}.npz"

    def predict() -> dict[str, NDArray[Any]]:
        left, right = _pair_rows(descriptor, store.pixels, pairs)
        return {
            "distance": row_distance(left, right),
            "is_found": _match_crowds(left, right, pairs, *crowds),
        }

    return cached(path, predict)


def _match_crowds(
    left: NDArray[Any],
    right: NDArray[Any],
    pairs: Pairs,
    crowds: list[NDArray[np.int64]],
    classes: NDArray[np.int64],
) -> Bool:
    """For each pair, whether its left patch found a right one of its class, and was found."""
    is_found = np.zeros(len(left), np.bool_)
    for crowd in crowds:
        found = crowd[mutual_nn(left[crowd], right[crowd]).pairs]
        is_right = classes[pairs.left[found[:, 0]]] == classes[pairs.right[found[:, 1]]]
        is_found[found[is_right, 0]] = True
    return is_found


def _tour_distances(model: Model, tour: PhotoTour, pairs: Pairs, options: Options) -> Float32:
    stamp = stamp_of(model=model.stamp, data=tour.digest)
    path = options.cache / f"phototour-{model.name}-{stamp}.npz"
    patches = tour.patches(np.arange(len(tour)), model.descriptor.card.patch.size)

    def predict() -> dict[str, NDArray[Any]]:
        return {"distance": row_distance(*_pair_rows(model.descriptor, patches, pairs))}

    return cached(path, predict)["distance"]


def _pair_rows(
    descriptor: Descriptor, patches: NDArray[Any], pairs: Pairs
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Descriptors of the left and of the right patches; each patch is described once."""
    used, where = np.unique(np.concatenate([pairs.left, pairs.right]), return_inverse=True)
    rows = describe_rows(descriptor, patches, used)
    count = len(pairs.left)
    return rows[where[:count]], rows[where[count:]]


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
        has_same_classes = np.array_equal(store.offsets, stores[0].offsets) and [
            store.scenes[number] for number in store.class_scenes
        ] == [stores[0].scenes[number] for number in stores[0].class_scenes]
        if not has_same_classes:
            raise DataError(f"{store.path}: not the classes of {stores[0].path}")


def _score(
    found: dict[str, NDArray[Any]], is_match: Bool, scenes: list[str], model: Model
) -> ModelResult:
    """FPR95 and the share matched, of all pairs and of each scene that has enough of them."""
    distance, is_found = found["distance"], found["is_found"]
    figures = {"fpr95": fpr95(distance, is_match), "matched": float(is_found[is_match].mean())}
    named = np.array(scenes)
    units: list[str] = []
    samples: dict[str, list[float]] = {"fpr95": [], "matched": []}
    for scene in dict.fromkeys(scenes):
        own = named == scene
        matching = own & is_match
        if own.sum() >= _MIN_SCENE_PAIRS and 0 < matching.sum() < own.sum():
            units.append(scene)
            samples["fpr95"].append(fpr95(distance[own], is_match[own]))
            samples["matched"].append(float(is_found[matching].mean()))
    if 1 < len(units) <= 20:
        for name, values in samples.items():
            figures.update({f"{u}: {name}": v for u, v in zip(units, values, strict=True)})
    return ModelResult(figures, tuple(units), tuple(units), samples, stamp=model.stamp)
