"""Benchmark `pairs`: FPR95 and matching on random pairs of any patch store.

Several stores of the same classes, cropped with different magnifications, may be given: each model
reads the store cropped as its card says, and all see the same keypoints. FPR95 on random pairs
hardly differs once it is near zero, so the matching pairs are also matched as the service would:
up to 2048 left patches of a scene against as many right ones, by mutual nearest neighbour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.models.descriptor import Descriptor
from matchserve.models.handcrafted import NAMES as HANDCRAFTED
from matchserve.models.handcrafted import HandcraftedDescriptor
from matchserve.types import Bool
from matchserve.vision.matching import mutual_nn
from training.data.store.pairs import PatchPairs, sample_pairs
from training.data.store.reader import PatchStore
from training.errors import DataError
from training.evaluation.predictions import Arrays, cached
from training.evaluation.protocol import (
    BenchmarkResult,
    Model,
    ModelResult,
    Options,
    stamp_of,
)
from training.metrics.metric import FPR95, MATCHED, in_group
from training.metrics.patch_pairs import fpr95, row_distance
from training.runs.crop import crop_options

PAIRS = 100_000
# The FPR95 of a scene with fewer pairs is too noisy to compare.
_MIN_SCENE_PAIRS = 200
# With more scenes than this, a table with columns for each is unreadable.
_MAX_SCENE_COLUMNS = 20
# Patches matched against each other: the keypoints of one image at the default settings.
_GROUP_SIZE = 2048


@dataclass(frozen=True, slots=True, eq=False)
class DrawnPairs:
    """Pairs of patches, the class of every patch, the scene of every pair, and groups of pairs.

    A group is an array of at most `_GROUP_SIZE` matching pairs of one scene.
    """

    pairs: PatchPairs
    classes: NDArray[np.int64]
    scenes: list[str]
    groups: list[NDArray[np.int64]]


def run(models: Iterable[Model], data: list[Path], options: Options) -> BenchmarkResult:
    """Measure every model on the same pairs."""
    stores = [PatchStore.open(path) for path in data]
    _check_same_classes(stores)
    drawn = draw(stores[0], options.limit or PAIRS, options.seed)
    results = {}
    for model in models:
        store, descriptor = _choose_store(model, stores)
        predicted = _predict(model, store, descriptor, drawn, options)
        results[model.name] = _score(predicted, drawn, model)
    protocol = {
        "pairs": len(drawn.pairs),
        "seed": options.seed,
        "matching": 0.5,
        "group_size": _GROUP_SIZE,
    }
    return BenchmarkResult("pairs", protocol, stores[0].digest, results)


def draw(store: PatchStore, count: int, seed: int) -> DrawnPairs:
    """Draw `count` pairs of `store` and divide the matching ones into groups."""
    pairs = sample_pairs(store, count, seed)
    classes = np.repeat(np.arange(len(store.class_scenes)), np.diff(store.offsets))
    scenes = store.class_scenes[classes[pairs.left]]
    groups = matching_groups(np.flatnonzero(pairs.is_match), scenes)
    return DrawnPairs(pairs, classes, [store.scenes[s] for s in scenes], groups)


def matching_groups(matching: NDArray[np.int64], scenes: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Divide the matching pairs of each scene into groups of at most `_GROUP_SIZE`."""
    groups = []
    for scene in np.unique(scenes[matching]):
        own = matching[scenes[matching] == scene]
        groups += np.array_split(own, -(-len(own) // _GROUP_SIZE))
    return groups


def match_groups(left: NDArray[Any], right: NDArray[Any], drawn: DrawnPairs) -> Bool:
    """Return for each pair whether its left patch was matched to a right patch of its class.

    `left` and `right` are the descriptors of the pairs; only patches of one group compete.
    """
    pairs, classes = drawn.pairs, drawn.classes
    is_matched = np.zeros(len(left), np.bool_)
    for group in drawn.groups:
        mutual = group[mutual_nn(left[group], right[group]).pairs]
        is_correct = classes[pairs.left[mutual[:, 0]]] == classes[pairs.right[mutual[:, 1]]]
        is_matched[mutual[is_correct, 0]] = True
    return is_matched


def _predict(
    model: Model, store: PatchStore, descriptor: Descriptor, drawn: DrawnPairs, options: Options
) -> Arrays:
    stamp = stamp_of(
        model=model.stamp,
        data=store.digest,
        pairs=len(drawn.pairs),
        seed=options.seed,
        group_size=_GROUP_SIZE,
    )

    def predict() -> Arrays:
        left, right = drawn.pairs.describe(descriptor.describe_patches, store.patches)
        return {
            "distance": row_distance(left, right),
            "is_matched": match_groups(left, right, drawn),
        }

    return cached(options.cache / f"pairs-{model.name}-{stamp}.npz", predict)


def _choose_store(model: Model, stores: list[PatchStore]) -> tuple[PatchStore, Descriptor]:
    """Return the store cropped as the model's card says, and the descriptor to use on it.

    The handcrafted descriptors accept any crop and get the widest one.
    """
    if model.name in HANDCRAFTED:
        widest = max(stores, key=lambda store: store.spec.magnification)
        return widest, HandcraftedDescriptor(model.name, patch=widest.spec)
    wanted = model.descriptor.card.patch
    for store in stores:
        if store.spec == wanted:
            return store, model.descriptor
    have = ", ".join(crop_options(store.spec) for store in stores)
    raise DataError(
        f"{model.name} needs patches cut with {crop_options(wanted)}; those of the stores were cut "
        f"with {have}. Make one with `python -m training data recrop {stores[0].path} PHOTOS -o "
        f"STORE {crop_options(wanted)}`"
    )


def _check_same_classes(stores: list[PatchStore]) -> None:
    for store in stores[1:]:
        has_same_classes = np.array_equal(store.offsets, stores[0].offsets) and [
            store.scenes[number] for number in store.class_scenes
        ] == [stores[0].scenes[number] for number in stores[0].class_scenes]
        if not has_same_classes:
            raise DataError(f"{store.path}: its classes are not those of {stores[0].path}")


def _score(predicted: Arrays, drawn: DrawnPairs, model: Model) -> ModelResult:
    """Return FPR95 and the share matched, over all pairs and for each scene with enough pairs."""
    distance, is_matched = predicted["distance"], predicted["is_matched"]
    is_match = drawn.pairs.is_match
    figures = {
        FPR95.name: fpr95(distance, is_match),
        MATCHED.name: float(is_matched[is_match].mean()),
    }
    scene_of = np.array(drawn.scenes)
    units: list[str] = []
    samples: dict[str, list[float]] = {FPR95.name: [], MATCHED.name: []}
    for scene in dict.fromkeys(drawn.scenes):
        own = scene_of == scene
        matching = own & is_match
        if own.sum() >= _MIN_SCENE_PAIRS and 0 < matching.sum() < own.sum():
            units.append(scene)
            samples[FPR95.name].append(fpr95(distance[own], is_match[own]))
            samples[MATCHED.name].append(float(is_matched[matching].mean()))
    if 1 < len(units) <= _MAX_SCENE_COLUMNS:
        for name, values in samples.items():
            figures.update({in_group(u, name): v for u, v in zip(units, values, strict=True)})
    return ModelResult(figures, tuple(units), tuple(units), samples, stamp=model.stamp)
