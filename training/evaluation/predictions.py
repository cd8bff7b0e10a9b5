"""Phase one: what each model says of the images, kept in files; phase two scores those.

A file is named after everything that determines its content (model, images, protocol), so a file
that is there is right, and scores can be computed again in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.files import open_whole
from matchserve.types import Features, Image, Keypoints
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.matching import MatchOptions, match
from training.data.parallel import progress
from training.evaluation.protocol import Model, Options, stamp_of

Loader = Callable[[], Image]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class ImageSet:
    """Images by name, pairs of names to match, and a digest of the files they come from."""

    images: Mapping[str, Loader]
    pairs: Sequence[tuple[str, str]]
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Keypoints by image (the same for all models) and matches (M, 2) by pair."""

    keypoints: Mapping[str, Keypoints]
    sizes: Mapping[str, tuple[int, int]]
    matches: Mapping[tuple[str, str], NDArray[np.int32]]

    def points(self, pair: tuple[str, str]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Matched points of a pair, (M, 2) each, float64."""
        rows = self.matches[pair]
        left = self.keypoints[pair[0]].xy[rows[:, 0]]
        right = self.keypoints[pair[1]].xy[rows[:, 1]]
        return left.astype(np.float64), right.astype(np.float64)


def predict(model: Model, data: ImageSet, options: Options) -> Predictions:
    """Match all pairs of `data` with `model`, or read what an earlier run kept."""
    found = find_keypoints(data, options)
    keypoints = {name: as_keypoints(found[name][1:]) for name in data.images}
    sizes = {name: (int(rows[0, 0]), int(rows[0, 1])) for name, rows in found.items()}
    stamp = stamp_of(
        model=model.stamp,
        data=data.digest,
        pairs=data.pairs,
        **options.protocol("max_keypoints", "ratio"),
    )
    kept = cached(
        options.cache / f"matches-{model.name}-{stamp}.npz",
        lambda: _match_all(model, data, keypoints, options),
    )
    matches = {pair: kept[str(number)] for number, pair in enumerate(data.pairs)}
    return Predictions(keypoints, sizes, matches)


def find_keypoints(data: ImageSet, options: Options) -> Arrays:
    """Keypoints of every image as rows (x, y, sigma, angle, score), after a row (w, h, 0, 0, 0)."""
    stamp = stamp_of(
        data=data.digest, images=sorted(data.images), **options.protocol("max_keypoints")
    )

    def detect_all() -> Arrays:
        rule = DetectOptions(max_keypoints=options.max_keypoints)
        rows = {}
        for name, load in progress(data.images.items(), total=len(data.images), label="keypoints"):
            image = load()
            found = detect(image, rule)
            rows[name] = np.concatenate(
                [
                    [[*image.size, 0, 0, 0]],
                    np.column_stack([found.xy, found.sigma, found.angle, found.score]),
                ]
            ).astype(np.float32)
        return rows

    return cached(options.cache / f"keypoints-{stamp}.npz", detect_all)


def cached(path: Path, make: Callable[[], Arrays]) -> Arrays:
    """The arrays kept in `path`, or those that `make` returns, kept there from now on."""
    if path.is_file():
        with np.load(path, allow_pickle=False) as kept:
            return {name: kept[name] for name in kept.files}
    arrays = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_whole(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return arrays


def as_keypoints(rows: NDArray[Any]) -> Keypoints:
    """Keypoints from rows of x, y, sigma, angle, score."""
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
    return {
        str(number): np.asarray(match(features[one], features[other], rule).pairs)
        for number, (one, other) in enumerate(data.pairs)
    }
