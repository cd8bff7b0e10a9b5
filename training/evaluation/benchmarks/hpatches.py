"""Benchmark `hpatches`: verification, matching and retrieval, as the official scripts score them.

Each 65 px patch is resized bilinearly to the samples that the model reads, as in the papers. Values
are average precisions as shares of 1, by the trapezoid rule of `training.metrics.patch_pairs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.types import Float64
from training.data.parallel import progress
from training.data.public.hpatches import (
    LEVELS,
    SIDE,
    STRIPS,
    HPatches,
    VerificationLists,
)
from training.evaluation.predictions import cached
from training.evaluation.protocol import (
    BenchmarkResult,
    Model,
    ModelResult,
    Options,
    stamp_of,
)
from training.metrics.metric import (
    MATCHING,
    MATCHING_KIND,
    PATCH_SAMPLES,
    RETRIEVAL,
    RETRIEVAL_KIND,
    VERIFICATION,
    VERIFICATION_KIND,
)
from training.metrics.patch_pairs import average_precision, row_distance

POSITIVE_SHARE = 0.2
_BLOCK = 100_000

Strips = Mapping[str, Mapping[str, NDArray[Any]]]
"""Descriptors (n, D) by sequence and strip."""


def run(models: Iterable[Model], data: list[Path], options: Options) -> BenchmarkResult:
    """Score the three tasks on the test sequences of one split."""
    release = HPatches.open(data[0])
    names = release.test_sequences(options.split)
    lists = release.verification(options.split, options.limit or 1_000_000)
    queries, distractors = release.retrieval(options.split)
    digest = stamp_of(lengths=release.lengths, split=options.split)
    results = {}
    for model in models:
        strips = describe_strips(model, release, names, digest, options)
        matched, samples = matching(strips, names)
        figures = {
            PATCH_SAMPLES.name: float(model.descriptor.card.patch.size),
            **verification(strips, names, lists),
            **matched,
            **retrieval(strips, queries, distractors),
        }
        units = tuple(names)
        results[model.name] = ModelResult(figures, units, units, samples, stamp=model.stamp)
    protocol = {
        "split": options.split,
        "verification_rows": len(lists.sequence),
        "patch": f"{SIDE} px, resized bilinearly to the samples of the model",
    }
    return BenchmarkResult("hpatches", protocol, digest, results)


def describe_strips(
    model: Model, release: HPatches, names: list[str], digest: str, options: Options
) -> dict[str, dict[str, NDArray[Any]]]:
    """Describe every strip of the test sequences; the cache holds one file per sequence."""
    size = model.descriptor.card.patch.size
    described = {}
    for name in progress(names, total=len(names), label=model.name):
        stamp = stamp_of(model=model.stamp, data=digest, sequence=name)
        described[name] = cached(
            options.cache / f"hpatches-{model.name}-{stamp}.npz",
            lambda name=name: {  # type: ignore[misc]
                strip: model.descriptor.describe_patches(release.strip(name, strip, size)[:, None])
                for strip in STRIPS
            },
        )
    return described


def verification(strips: Strips, names: list[str], lists: VerificationLists) -> dict[str, float]:
    """Return the mean average precision over levels and kinds of negatives, and its parts.

    As in the official scripts, all negatives are used and a fifth of the positives.
    """
    figures, values = {}, []
    positives = int(len(lists.sequence) * POSITIVE_SHARE)
    labels = np.r_[np.zeros(len(lists.sequence), bool), np.ones(positives, bool)]
    for level in LEVELS:
        rows = _Rows(strips, names, level)
        left = (lists.sequence, lists.image0, lists.index)
        same = rows.distance(left, (lists.sequence, lists.image1, lists.index))[:positives]
        others = {
            "intra": (lists.sequence, lists.image1, lists.index_intra),
            "inter": (lists.sequence_inter, lists.image1, lists.index_inter),
        }
        for kind, right in others.items():
            distance = np.r_[rows.distance(left, right), same]
            values.append(average_precision(-distance, labels))
            figures[VERIFICATION_KIND.of(level, kind)] = values[-1]
    return {VERIFICATION.name: float(np.mean(values)), **figures}


def matching(strips: Strips, names: list[str]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return the mean average precision of nearest neighbours, and its value for each sequence.

    The reference strip of a sequence is matched with each of its other strips.
    """
    per_level: dict[str, list[float]] = {level: [] for level in LEVELS}
    for name in names:
        reference = strips[name]["ref"]
        for level in LEVELS:
            values = []
            for image in range(1, 6):
                far = all_distances(reference, strips[name][f"{level}{image}"])
                nearest = far.argmin(axis=1)
                rows = np.arange(len(far))
                is_right = nearest == rows
                values.append(average_precision(-far[rows, nearest], is_right, len(rows)))
            per_level[level].append(float(np.mean(values)))
    figures = {MATCHING_KIND.of(level): float(np.mean(v)) for level, v in per_level.items()}
    by_sequence = np.mean([per_level[level] for level in LEVELS], axis=0)
    for kind, start in (("view", "v_"), ("illumination", "i_")):
        own = [v for v, name in zip(by_sequence, names, strict=True) if name.startswith(start)]
        if own:
            figures[MATCHING_KIND.of(kind)] = float(np.mean(own))
    samples = {MATCHING.name: by_sequence.tolist()}
    return {MATCHING.name: float(by_sequence.mean()), **figures}, samples


def retrieval(
    strips: Strips,
    queries: list[tuple[str, int]],
    distractors: list[tuple[str, int]],
    rank: int = 20_000,
) -> dict[str, float]:
    """Return the mean average precision of finding the five copies of a patch among `rank`."""
    pool = np.stack([strips[name]["ref"][index] for name, index in distractors])
    pool_sequence = np.array([name for name, _ in distractors])
    values: dict[str, list[float]] = {level: [] for level in LEVELS}
    for name in dict.fromkeys(name for name, _ in queries):
        own = [index for query, index in queries if query == name]
        reference = strips[name]["ref"][own]
        others = all_distances(reference, pool[pool_sequence != name])
        for level in LEVELS:
            near = [
                row_distance(reference, strips[name][f"{level}{image}"][own])
                for image in range(1, 6)
            ]
            ranked = np.column_stack([*near, others])[:, :rank]
            labels = np.arange(ranked.shape[1]) < 5
            values[level] += [average_precision(-row, labels) for row in ranked]
    figures = {RETRIEVAL_KIND.of(level): float(np.mean(v)) for level, v in values.items()}
    return {RETRIEVAL.name: float(np.mean(list(figures.values()))), **figures}


def all_distances(left: NDArray[Any], right: NDArray[Any]) -> Float64:
    """Return all distances (N, M): Euclidean in double precision, or Hamming for packed bits."""
    if left.dtype == np.uint8:
        bits = np.bitwise_count(left[:, None] ^ right[None])
        return np.asarray(bits.sum(axis=2), np.float64)
    one, other = left.astype(np.float64), right.astype(np.float64)
    squared = (one**2).sum(1)[:, None] + (other**2).sum(1)[None] - 2 * one @ other.T
    return np.asarray(np.sqrt(np.maximum(squared, 0)))


class _Rows:
    """Descriptors of one level by (sequence, image, index); image 0 is the reference."""

    def __init__(self, strips: Strips, names: list[str], level: str) -> None:
        wanted = ["ref", *(f"{level}{image}" for image in range(1, 6))]
        lengths = [len(strips[name]["ref"]) for name in names]
        self._rows = np.concatenate([strips[name][w] for name in names for w in wanted])
        self._base = np.cumsum([0, *lengths])[:-1] * len(wanted)
        self._length = np.array(lengths)

    def distance(self, left: tuple[Any, Any, Any], right: tuple[Any, Any, Any]) -> Float64:
        """Return the distance of each entry of `left` to the same entry of `right`."""
        one, other = self._at(*left), self._at(*right)
        parts = [
            row_distance(self._rows[one[at : at + _BLOCK]], self._rows[other[at : at + _BLOCK]])
            for at in range(0, len(one), _BLOCK)
        ]
        return np.concatenate(parts).astype(np.float64)

    def _at(self, sequence: Any, image: Any, index: Any) -> NDArray[np.int64]:
        return np.asarray(self._base[sequence] + image * self._length[sequence] + index)
