"""Measure retrieval: every image of a scene is a query, all other images are the gallery."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from matchserve.clock import Call, one_thread
from matchserve.collections.work import Setup
from matchserve.matcher import Matcher
from matchserve.retrieval.asmk import aggregate
from matchserve.retrieval.codebook import Codebook, as_vectors
from matchserve.retrieval.lists import InvertedLists
from matchserve.types import Bool, Features, Float64
from training.data.images import list_images
from training.data.parallel import progress

COVISIBLE_INLIERS = 30
"""Least number of inliers of a fundamental matrix in a pair that is covisible."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one group of scenes, as shares.

    `mean_ap` counts all images of the query's scene; `recall` at 10 and 20 counts the covisible
    ones, of as many as could be found.
    """

    queries: int
    mean_ap: float
    recall_10: float
    recall_20: float


def find_scenes(directories: Sequence[Path]) -> dict[str, dict[str, Path]]:
    """Return the images of each scene: a folder of images inside of one of the directories."""
    scenes = {}
    for directory in directories:
        for folder in sorted(p for p in directory.iterdir() if p.is_dir()):
            scenes[f"{directory.name}/{folder.name}"] = list_images([folder])
    return scenes


def covisible_pairs(
    setup: Setup, scenes: Mapping[str, Sequence[str]], features: Mapping[str, Features]
) -> set[tuple[str, str]]:
    """Return pairs of image names, in both orders, that share enough inliers."""
    matcher = Matcher(setup.model, threads=1)
    pairs = [pair for names in scenes.values() for pair in itertools.combinations(names, 2)]
    covisible = set()
    for one, other in progress(pairs, total=len(pairs), label="match"):
        call = Call(threads=one_thread)
        result = matcher.match_features(features[one], features[other], setup.options, call)
        if result.inlier_count >= COVISIBLE_INLIERS:
            covisible |= {(one, other), (other, one)}
    return covisible


def measure(
    features: Mapping[str, Features],
    codebook: Codebook,
    scene_of: Mapping[str, str],
    covisible: set[tuple[str, str]],
) -> dict[str, Figures]:
    """Search with every image of a scene; return figures by group, the part before the `/`.

    `scene_of` names the scene of each query; all other images are distractors. Several groups are
    followed by `all` of their queries together.
    """
    names = list(features)
    words = {name: aggregate(as_vectors(features[name].descriptors), codebook) for name in names}
    lists = InvertedLists(len(codebook), codebook.words.shape[1])
    for name in names:
        lists.add(words[name][0])
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for number, name in enumerate(names):
        if name in scene_of:
            scores = lists.scores(words[name][1])
            ranked = [names[i] for i in _ranking(scores, number)]
            group = scene_of[name].split("/")[0]
            rows.setdefault(group, []).append(_query(name, ranked, scene_of, covisible))
    if len(rows) > 1:
        rows["all"] = list(itertools.chain.from_iterable(rows.values()))
    return {group: _mean(values) for group, values in rows.items()}


def average_precision(is_relevant: Bool) -> float:
    """Return the mean, over all relevant items, of the precision at their ranks."""
    ranks = np.flatnonzero(is_relevant) + 1
    return float((np.arange(1, len(ranks) + 1) / ranks).mean()) if len(ranks) else float("nan")


def _ranking(scores: Float64, query: int) -> NDArray[np.int64]:
    order = np.argsort(-scores, kind="stable")
    return np.asarray(order[order != query])


def _query(
    name: str, ranked: list[str], scene_of: Mapping[str, str], covisible: set[tuple[str, str]]
) -> tuple[float, float, float]:
    is_same = np.array([scene_of.get(other) == scene_of[name] for other in ranked])
    is_seen = np.array([(name, other) in covisible for other in ranked])
    total = int(is_seen.sum())
    recalls = [
        is_seen[:count].sum() / min(count, total) if total else float("nan") for count in (10, 20)
    ]
    return average_precision(is_same), recalls[0], recalls[1]


def _mean(rows: list[tuple[float, float, float]]) -> Figures:
    mean_ap, recall_10, recall_20 = np.nanmean(np.array(rows), axis=0).tolist()
    return Figures(len(rows), mean_ap, recall_10, recall_20)
