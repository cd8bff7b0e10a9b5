"""Predictions of models (keypoints and matches), cached in files; benchmarks then score them.

The name of a file contains a hash of everything that determines its content (model, images,
protocol). An existing file is therefore valid, and scores can be computed again in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve import defaults
from matchserve.files import open_whole
from matchserve.pipeline.judging import matched_keypoints, one_for_each_position
from matchserve.threads import off_main_thread
from matchserve.types import Features, Image, Keypoints
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.matching import MatchOptions, match
from training.data.parallel import progress
from training.evaluation.protocol import Model, Options, matching_code, stamp_of

Loader = Callable[[], Image]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class ImageSet:
    """Images by name, pairs of names to match, and a digest of the image files."""

    images: Mapping[str, Loader]
    pairs: Sequence[tuple[str, str]]
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Keypoints and size (width, height) by image, and matches (M, 2) by pair.

    The keypoints are the same for all models.
    """

    keypoints: Mapping[str, Keypoints]
    sizes: Mapping[str, tuple[int, int]]
    matches: Mapping[tuple[str, str], NDArray[np.int32]]

    def points(self, pair: tuple[str, str]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the matched points of a pair, float64 (M, 2) in each image."""
        rows = self.matches[pair]
        left = self.keypoints[pair[0]].xy[rows[:, 0]]
        right = self.keypoints[pair[1]].xy[rows[:, 1]]
        return left.astype(np.float64), right.astype(np.float64)


def predict(model: Model, data: ImageSet, options: Options) -> Predictions:
    """Match all pairs of `data` with `model`, or read the matches from the cache."""
    detected = find_keypoints(data, options)
    keypoints = {name: as_keypoints(detected[name][1:]) for name in data.images}
    sizes = {name: (int(rows[0, 0]), int(rows[0, 1])) for name, rows in detected.items()}
    stamp = stamp_of(
        model=model.stamp,
        data=data.digest,
        pairs=data.pairs,
        code=matching_code(),
        **options.protocol("max_keypoints", "ratio", "selection"),
    )
    arrays = cached(
        options.cache / f"matches-{model.name}-{stamp}.npz",
        lambda: _match_all(model, data, keypoints, options),
    )
    matches = {pair: arrays[str(number)] for number, pair in enumerate(data.pairs)}
    return Predictions(keypoints, sizes, matches)


def find_keypoints(
    data: ImageSet, options: Options, further_orientations: float = defaults.FURTHER_ORIENTATIONS
) -> Arrays:
    """Detect the keypoints of every image, or read them from the cache.

    The strongest with all their orientations, or those that the `selection` of the options chooses.

    Each array has a first row (width, height, 0, 0, 0), then rows (x, y, sigma, angle, score).
    """
    stamp = stamp_of(
        data=data.digest,
        images=sorted(data.images),
        code=matching_code(),
        further_orientations=further_orientations,
        **options.protocol("max_keypoints", "selection"),
    )

    def detect_all() -> Arrays:
        rule = DetectOptions(
            max_keypoints=options.max_keypoints,
            duplicates=options.selection is None,
            selection=options.selection or "contrast",
            further_orientations=further_orientations,
        )
        rows = {}
        for name, load in progress(data.images.items(), total=len(data.images), label="keypoints"):
            image = load()
            points = off_main_thread(detect, image, rule)
            columns = [points.xy, points.sigma, points.angle, points.score]
            rows[name] = np.concatenate(
                [[[*image.size, 0, 0, 0]], np.column_stack(columns)]
            ).astype(np.float32)
        return rows

    return cached(options.cache / f"keypoints-{stamp}.npz", detect_all)


def cached(path: Path, make: Callable[[], Arrays]) -> Arrays:
    """Read the arrays in `path`; if it does not exist, call `make` and write its arrays there."""
    if path.is_file():
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    arrays = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_whole(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return arrays


def as_keypoints(rows: NDArray[Any]) -> Keypoints:
    """Return keypoints from rows of x, y, sigma, angle, score."""
    return Keypoints(rows[:, :2], rows[:, 2], rows[:, 3], rows[:, 4])


def describe_all(
    model: Model, images: Mapping[str, Loader], keypoints: Mapping[str, Keypoints]
) -> dict[str, Features]:
    """Describe the given keypoints of every image."""
    described = {}
    for name, load in progress(images.items(), total=len(images), label=model.name):
        image = load()
        rows = model.descriptor.describe(image, keypoints[name])
        described[name] = Features(keypoints[name], rows, model.name, image.size)
    return described


def _match_all(
    model: Model, data: ImageSet, keypoints: Mapping[str, Keypoints], options: Options
) -> Arrays:
    features = describe_all(model, data.images, keypoints)
    rule = MatchOptions(ratio=options.ratio)

    def matched(one: str, other: str) -> NDArray[np.int32]:
        sides = features[one], features[other]
        found = match(*sides, rule)
        if options.selection is not None:
            rows = np.arange(len(found))
            found = found[one_for_each_position(matched_keypoints(sides, found), found.score, rows)]
        return np.asarray(found.pairs)

    return {str(number): matched(*pair) for number, pair in enumerate(data.pairs)}
