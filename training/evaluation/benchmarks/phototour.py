"""Benchmark `phototour`: FPR95 on the official pairs of UBC PhotoTour sets.

Each 64 px patch is resampled to the number of samples that the model reads. PhotoTour's patches
have a fixed extent, with nothing around them: a model that pools two domain sizes gets the whole
patch as its larger domain, so its smaller domain shows only the middle of the patch. Its FPR95 is
that of the served model on this data, not of a crop made for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from matchserve.types import Float32, UInt8
from training.data.public.phototour import PAIR_FILE, SIDE, PhotoTour
from training.data.store.pairs import PatchPairs
from training.data.store.reader import Int64
from training.evaluation.predictions import Arrays, cached
from training.evaluation.protocol import (
    BenchmarkResult,
    Model,
    ModelResult,
    Options,
    stamp_of,
)
from training.metrics.metric import FPR95, PATCH_SAMPLES, in_group
from training.metrics.patch_pairs import fpr95, row_distance

_PROTOCOL = {
    "pairs": PAIR_FILE,
    "patch": f"{SIDE} px, resampled to the samples of the model (area average or bilinear)",
}


def run(models: Iterable[Model], data: list[Path], options: Options) -> BenchmarkResult:
    """Measure FPR95 of every model on the 100,000 pairs of each PhotoTour set given."""
    sets = [(tour, tour.pairs()) for tour in map(PhotoTour.open, data)]
    units = tuple(tour.name for tour, _ in sets)
    results = {}
    for model in models:
        values = [
            fpr95(_distances(model, tour, pairs, options), pairs.is_match) for tour, pairs in sets
        ]
        figures = {
            PATCH_SAMPLES.name: float(model.descriptor.card.patch.size),
            **{in_group(u, FPR95.name): v for u, v in zip(units, values, strict=True)},
            FPR95.name: float(np.mean(values)),
        }
        results[model.name] = ModelResult(
            figures, units, units, {FPR95.name: values}, stamp=model.stamp
        )
    digest = stamp_of(sets=[tour.digest for tour, _ in sets])
    return BenchmarkResult("phototour", _PROTOCOL, digest, results)


def _distances(model: Model, tour: PhotoTour, pairs: PatchPairs, options: Options) -> Float32:
    size = model.descriptor.card.patch.size
    stamp = stamp_of(model=model.stamp, data=tour.digest, samples=size)

    def read_patches(indices: Int64) -> UInt8:
        return tour.patches(indices, size)[:, None]

    def predict() -> Arrays:
        left, right = pairs.describe(model.descriptor.describe_patches, read_patches)
        return {"distance": row_distance(left, right)}

    return cached(options.cache / f"phototour-{model.name}-{stamp}.npz", predict)["distance"]
