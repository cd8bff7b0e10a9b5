"""Refine the matched points of verified pairs.

Matches are refined in shards, as they were found, and the results lie beside those of the matches.
`vision.consistency` then gives each keypoint one position.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from matchserve.clock import Call, one_thread
from matchserve.collections.shards import PairResult, Shard, read_results, shard_path
from matchserve.collections.sources import open_source
from matchserve.collections.work import FeatureSource, Setup, load_matcher
from matchserve.errors import MissingInput, StorageDamaged
from matchserve.matcher import Matcher
from matchserve.objects import Place
from matchserve.sealed import read_sealed, write_sealed
from matchserve.types import Bool, Float32, Image
from matchserve.vision.agreement import similarities
from matchserve.vision.consistency import RefinedPair, match_weights
from matchserve.vision.refine import RefineOptions, refine

CACHE_BYTES = 128 << 20
"""Memory for decoded images that a process keeps between pairs."""

REFINE_OPTIONS = RefineOptions(min_correlation=0.6, capped_sigma=1.6)
"""More windows may be aligned than in a single pair: other images tell which ones are right."""

FORMAT = 3
"""Version of the stored points; a new one refines all pairs anew."""


def refined_path(folder: Place, shard: str) -> Place:
    """Return the file of the refined points of a shard."""
    return folder / f"{shard}.refined-{FORMAT}.npz"


def refine_shard(setup: Setup, shard: Shard, paths: Mapping[str, Path]) -> int:
    """Refine the inliers of the verified pairs of a shard; return the number of all its pairs.

    `paths` are the images by feature key.

    Raises:
        StorageFull: there is no room on the disk.
        StorageDamaged: an image has changed since it was described.
    """
    target = refined_path(setup.matches, shard.id)
    try:
        return len(read_sealed(target)["offsets"]) - 1
    except StorageDamaged:
        pass
    results = read_results(shard_path(setup.matches, shard.id))
    points = [_refine_pair(setup, result, paths) for result in results]
    columns = {
        "xy1": np.concatenate([one.xy1 for one in points]),
        "affine": np.concatenate([one.affine for one in points]),
        "is_refined": np.concatenate([one.is_refined for one in points]),
        "correlation": np.concatenate([one.correlation for one in points]),
        "pixel": np.array([one.pixel for one in points]),
        "offsets": np.concatenate([[0], np.cumsum([len(one.xy1) for one in points])]),
    }
    write_sealed(target, columns)
    return len(results)


def read_refined(setup: Setup, shard: str, results: list[PairResult]) -> Iterator[RefinedPair]:
    """Yield the verified pairs of a shard, by feature key, with refined points of their inliers.

    Raises:
        StorageDamaged: the file is absent or damaged; it is removed, so that it is made again.
    """
    path = refined_path(setup.matches, shard)
    try:
        columns = read_sealed(path)
    except StorageDamaged as error:
        path.unlink(missing_ok=True)
        raise StorageDamaged(f"{error.message}; run the same command again") from error
    for number, result in enumerate(results):
        if result.is_verified:
            start, end = columns["offsets"][number : number + 2]
            confidence = np.ones(end - start, np.float32)
            if result.confidence is not None:
                confidence = result.confidence[result.inliers]
            yield RefinedPair(
                result.keys,
                result.rows[result.inliers],
                columns["xy1"][start:end],
                columns["affine"][start:end],
                columns["is_refined"][start:end],
                match_weights(confidence, columns["correlation"][start:end]),
                float(columns["pixel"][number]),
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Points:
    """The refined points of the inliers of one pair; the fields are those of `Refinement`."""

    xy1: Float32
    affine: Float32
    is_refined: Bool
    correlation: Float32
    pixel: float = 1.0

    @classmethod
    def unrefined(cls, xy1: Float32, affine: Float32) -> _Points:
        return cls(xy1, affine, np.zeros(len(xy1), np.bool_), np.zeros(len(xy1), np.float32))


def _refine_pair(setup: Setup, result: PairResult, paths: Mapping[str, Path]) -> _Points:
    """Refine the inliers of a pair; a pair that is not verified has none."""
    if not result.is_verified:
        return _Points.unrefined(np.zeros((0, 2), np.float32), np.zeros((0, 2, 2), np.float32))
    source = FeatureSource(setup, paths)
    rows = result.rows[result.inliers]
    first, second = (source.features(key).keypoints for key in result.keys)
    matched = (first[rows[:, 0]], second[rows[:, 1]])
    image0, image1 = (_image(setup, key, paths[key]) for key in result.keys)
    if image0 is None or image1 is None:
        return _Points.unrefined(matched[1].xy, similarities(*matched))
    found = refine((image0, image1), matched, REFINE_OPTIONS)
    return _Points(found.xy1, found.affine, found.is_refined, found.correlation, image1.pixel)


def _image(setup: Setup, key: str, path: Path) -> Image | None:
    """Return a decoded image, None if it is read in windows: its points are not refined."""
    cache = _cache()
    if key in cache:
        cache.move_to_end(key)
        return cache[key]
    image = cache[key] = _decoded(load_matcher(setup), setup, key, path)
    while _held_bytes(cache) > CACHE_BYTES and len(cache) > 2:
        cache.popitem(last=False)
    return image


def _held_bytes(cache: Mapping[str, Image | None]) -> int:
    return sum(image.grey.nbytes for image in cache.values() if image is not None)


def _decoded(matcher: Matcher, setup: Setup, key: str, path: Path) -> Image | None:
    """Decode an image that must still be the one that was described."""
    with suppress(MissingInput):
        source = open_source(path, matcher.limits, setup.tiles)
        if source.key(matcher.descriptor.card, setup.options) == key:
            if source.data is None:
                return None
            return matcher.load(source.data, setup.options, Call(threads=one_thread))
    raise StorageDamaged(
        f"{path} has changed or vanished since it was described; run the same command "
        "again, or export with --refine none"
    )


@functools.cache
def _cache() -> OrderedDict[str, Image | None]:
    """Return the images of this process, the most recently used last."""
    return OrderedDict()
