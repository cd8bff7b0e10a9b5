"""Match the images of a scene as a collection does, with one refined position per keypoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from matchserve import defaults
from matchserve.clock import Call
from matchserve.collections.collection import DEFAULT_OPTIONS
from matchserve.collections.refining import REFINE_OPTIONS
from matchserve.matcher import Matcher
from matchserve.types import Features, Image
from matchserve.vision.consistency import RefinedPair, agree, match_weights
from matchserve.vision.matching import MatchOptions
from matchserve.vision.refine import refine
from training.data.parallel import progress
from training.data.scenes.sfm import SfmOptions, covisible_pairs
from training.evaluation.pipeline import confidence_stamp
from training.evaluation.predictions import (
    Arrays,
    ImageSet,
    as_keypoints,
    cached,
    describe_all,
    find_keypoints,
)
from training.evaluation.protocol import Model, Options, matching_code, stamp_of


@dataclass(frozen=True, slots=True, eq=False)
class MatchedScene:
    """Features by image, whose keypoints are where their matches agree, and matches by pair.

    The features have no descriptors: a reconstruction needs none.
    """

    features: Mapping[str, Features]
    matches: Mapping[tuple[str, str], NDArray[np.int32]]


def match_scene(model: Model, images: ImageSet, options: Options, rule: SfmOptions) -> MatchedScene:
    """Match all covisible pairs and refine their inliers, or read both from the cache.

    The seed of the mapper changes neither, so that runs with other seeds share the matches.
    """
    options = replace(options, selection=options.selection or defaults.SELECTION)
    stamp = stamp_of(
        model=model.stamp,
        confidence=confidence_stamp(model),
        data=images.digest,
        rule=repr((DEFAULT_OPTIONS, REFINE_OPTIONS)),
        version=3,
        code=matching_code(),
        **options.protocol("max_keypoints", "ratio", "selection"),
    )
    path = options.cache / f"scene-{model.name}-{stamp}.npz"
    kept = cached(path, lambda: _match_all(model, images, options, rule))
    names = list(images.images)
    features = {}
    for number, name in enumerate(names):
        keypoints, size = as_keypoints(kept[f"keypoints/{number}"]), kept[f"size/{number}"]
        nothing = np.zeros((len(keypoints), 0), np.float32)
        features[name] = Features(keypoints, nothing, model.name, (int(size[0]), int(size[1])))
    numbers = enumerate(kept["pairs"].tolist())
    matches = {(names[a], names[b]): kept[f"matches/{row}"] for row, (a, b) in numbers}
    return MatchedScene(features, matches)


def _match_all(model: Model, images: ImageSet, options: Options, rule: SfmOptions) -> Arrays:
    """Return keypoints (x, y, sigma, angle, score) and sizes by image, and matches by pair."""
    rows = find_keypoints(images, options, DEFAULT_OPTIONS.detect.further_orientations)
    keypoints = {name: as_keypoints(rows[name][1:]) for name in images.images}
    described = describe_all(model, images.images, keypoints)
    # Matches are judged only if the card's own name stands there; a result may rename the model.
    name = model.descriptor.card.name
    features = {image: replace(found, model=name) for image, found in described.items()}
    matcher = Matcher(model.descriptor)
    load = cache(lambda image: images.images[image]())
    pairs = covisible_pairs(features, rule)
    matched = []
    for one, other in progress(pairs, total=len(pairs), label=f"{model.name}, pairs"):
        loaded = (load(one), load(other))
        found = _refined_pair(matcher, (one, other), features, loaded, options)
        if len(found.pairs):
            matched.append(found)
    agreement = agree(keypoints, matched)
    numbers = {image: number for number, image in enumerate(features)}
    arrays: Arrays = {
        "pairs": np.array([[numbers[image] for image in pair.images] for pair in matched], np.int32)
    }
    for image, number in numbers.items():
        points = keypoints[image]
        columns = [agreement.points[image], points.sigma, points.angle, points.score]
        arrays[f"keypoints/{number}"] = np.column_stack(columns)
        arrays[f"size/{number}"] = np.array(features[image].size)
    return arrays | {
        f"matches/{row}": pair.pairs[agreeing]
        for row, (pair, agreeing) in enumerate(zip(matched, agreement.agreeing, strict=True))
    }


def _refined_pair(
    matcher: Matcher,
    names: tuple[str, str],
    features: Mapping[str, Features],
    images: tuple[Image, Image],
    options: Options,
) -> RefinedPair:
    """Match two images, and refine the matches that agree with their geometry."""
    one, other = (features[name] for name in names)
    threads = options.threads or 1
    rule = replace(DEFAULT_OPTIONS, match=MatchOptions(ratio=options.ratio))
    found = matcher.match_features(one, other, rule, Call(threads=lambda: threads))
    kept = found.matches[found.verification.inliers]
    rows = kept.pairs
    matched = (one.keypoints[rows[:, 0]], other.keypoints[rows[:, 1]])
    points = refine(images, matched, REFINE_OPTIONS)
    confidence = np.ones(len(rows), np.float32) if kept.confidence is None else kept.confidence
    weights = match_weights(confidence, points.correlation)
    return RefinedPair(
        names, rows, points.xy1, points.affine, points.is_refined, weights, images[1].pixel
    )
