"""The work of one process: describe images, match the pairs of a shard. No database, no locks.

Both functions look into the store first, so work that exists is never done twice, and a damaged
file is made again.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from matchserve.clock import Call, one_thread
from matchserve.collections.colmap_verification import geometry_columns, match_with_colmap
from matchserve.collections.facts import Facts
from matchserve.collections.shards import (
    PairResult,
    Shard,
    Verifier,
    read_results,
    result_columns,
    shard_path,
    write_results,
)
from matchserve.collections.sources import Tiling, open_source
from matchserve.collections.store import FeatureStore
from matchserve.errors import ImageError, MissingInput, ProviderUnavailable, StorageDamaged
from matchserve.feature_cache import FeatureCache
from matchserve.matcher import Matcher, Options
from matchserve.objects import Place
from matchserve.types import Bool, Features, Float32, Int32

CACHE_BYTES = 256 << 20
"""Memory for features that a process keeps between pairs."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What all shards of a run share. `store` and `matches` are where the results lie."""

    store: Place
    matches: Place
    model: str
    options: Options
    models_dir: Path | None = None
    provider: str = "auto"
    verifier: Verifier = "matchserve"
    tiles: Tiling = "auto"


@dataclass(frozen=True, slots=True)
class Described:
    """What became of one image; `code` and `detail` say why it is refused, if it is."""

    name: str
    sha256: str = ""
    key: str = ""
    keypoints: int = 0
    facts: Facts | None = None
    was_made: bool = False
    code: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """What became of one shard: numbers for each pair, in the order of its keys.

    `remade` counts damaged feature files that were made again; `was_made` is False if the result
    existed.
    """

    id: str
    matches: Int32
    inliers: Int32
    is_verified: Bool
    same_scene: Float32
    seconds: float
    was_made: bool
    remade: int = 0


def describe_images(setup: Setup, images: Sequence[tuple[str, Path]]) -> list[Described]:
    """Describe images, given by name and path, that are not in the store.

    Raises:
        StorageFull: there is no room on the disk.
    """
    return [_describe(setup, name, path) for name, path in images]


def match_shard(setup: Setup, shard: Shard, paths: Mapping[str, Path]) -> Matched:
    """Match the pairs of a shard; `paths` are the images by feature key.

    Raises:
        StorageFull: there is no room on the disk.
        StorageDamaged: features are lost, and the image has changed since.
        ProviderUnavailable: COLMAP is to verify the matches, and is not installed.
    """
    start = time.perf_counter()
    path = shard_path(setup.matches, shard.id)
    try:
        results = read_results(path)
        return _receipt(shard.id, results, time.perf_counter() - start, was_made=False)
    except StorageDamaged:
        pass
    source, matcher = FeatureSource(setup, paths), load_matcher(setup)
    options = replace(setup.options, verify=replace(setup.options.verify, explain=False))
    matched = []
    for first, second in shard.keys:
        features = source.features(first), source.features(second)
        call = Call(threads=one_thread)
        if setup.verifier == "colmap":
            focal_lengths = shard.focal_px.get(first), shard.focal_px.get(second)
            result, geometry = match_with_colmap(
                matcher, features, focal_lengths, setup.options, call
            )
            matched.append(result_columns(result) | geometry_columns(geometry))
        else:
            result = matcher.match_features(*features, options, call)
            matched.append(result_columns(result))
    write_results(path, shard.keys, matched)
    results = read_results(path)
    seconds = time.perf_counter() - start
    return replace(_receipt(shard.id, results, seconds, was_made=True), remade=source.remade)


class FeatureSource:
    """Reads features from memory or the store, and makes damaged ones again."""

    def __init__(self, setup: Setup, paths: Mapping[str, Path]) -> None:
        self.setup, self.paths = setup, paths
        self.remade = 0
        self._store = FeatureStore(setup.store)
        self._cache = _cache()

    def features(self, key: str) -> Features:
        """Return the features of a key."""
        features = self._cache.get(key)
        if features is None:
            try:
                features = self._store.read(key)
            except StorageDamaged:
                features = self._make(key)
                self.remade += 1
            self._cache.put(key, features)
        return features

    def _make(self, key: str) -> Features:
        described = _describe(self.setup, str(self.paths[key]), self.paths[key], is_forced=True)
        if described.key != key:
            raise StorageDamaged(
                f"{self.paths[key]} has changed or vanished since it was described; "
                "run the same command again"
            )
        return self._store.read(key)


def load_features(setup: Setup, key: str, path: Path) -> Features:
    """Return stored features; make them again if they are damaged.

    Raises:
        StorageDamaged: features are lost, and the image has changed since.
    """
    return FeatureSource(setup, {key: path}).features(key)


def _describe(setup: Setup, name: str, path: Path, *, is_forced: bool = False) -> Described:
    matcher = load_matcher(setup)
    try:
        source = open_source(path, matcher.limits, setup.tiles)
    except MissingInput as error:
        return Described(name, code=error.code, detail=error.message)
    key = source.key(matcher.descriptor.card, setup.options)
    store = FeatureStore(setup.store)
    if not is_forced:
        try:
            return Described(name, source.sha256, key, len(store.read(key)), source.facts)
        except StorageDamaged:
            pass
    try:
        features = source.describe(matcher, setup.options)
    except (ImageError, ProviderUnavailable) as error:
        return Described(name, source.sha256, code=error.code, detail=error.message)
    store.write(key, features)
    return Described(name, source.sha256, key, len(features), source.facts, was_made=True)


def _receipt(shard: str, results: list[PairResult], seconds: float, *, was_made: bool) -> Matched:
    scenes = [np.nan if r.same_scene is None else r.same_scene for r in results]
    return Matched(
        shard,
        np.array([len(r.rows) for r in results], np.int32),
        np.array([r.inliers.sum() for r in results], np.int32),
        np.array([r.is_verified for r in results], np.bool_),
        np.array(scenes, np.float32),
        seconds,
        was_made,
    )


@functools.cache
def _matcher_of(model: str, models_dir: Path | None, provider: str) -> Matcher:
    return Matcher(model, models_dir=models_dir, provider=provider, threads=1)


def load_matcher(setup: Setup) -> Matcher:
    """Return the matcher of this process: loaded once for each model."""
    return _matcher_of(setup.model, setup.models_dir, setup.provider)


@functools.cache
def _cache() -> FeatureCache:
    return FeatureCache(CACHE_BYTES)
