"""Match the images of a scene by the default pipeline, with one refined position per keypoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from matchserve.libraries import import_faiss
from matchserve.pipeline.judging import JudgeOptions, find_matches
from matchserve.threads import off_main_thread
from matchserve.types import Features
from matchserve.vision.consistency import RefinedPair, consistent_points
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.matching import MatchOptions
from training.data.parallel import progress
from training.data.scenes.sfm import SfmOptions, covisible_pairs
from training.evaluation.predictions import ImageSet, describe_all
from training.evaluation.protocol import Model, Options


@dataclass(frozen=True, slots=True, eq=False)
class MatchedScene:
    """Features by image, whose keypoints are where their matches agree, and matches by pair."""

    features: Mapping[str, Features]
    matches: Mapping[tuple[str, str], NDArray[np.int32]]


def match_scene(model: Model, images: ImageSet, options: Options, rule: SfmOptions) -> MatchedScene:
    """Match all covisible pairs as the service does, and make the refined points consistent."""
    import_faiss().omp_set_num_threads(options.threads or 1)
    loaded = {name: load() for name, load in images.images.items()}
    detect_options = DetectOptions(max_keypoints=options.max_keypoints)
    keypoints = {
        name: off_main_thread(detect, image, detect_options)
        for name, image in progress(loaded.items(), total=len(loaded), label="keypoints")
    }
    features = describe_all(model, images.images, keypoints)
    card = model.descriptor.card
    # `find_matches` judges features of the card's own name; a result may rename the model.
    features = {name: replace(found, model=card.name) for name, found in features.items()}
    pairs = covisible_pairs(features, rule)
    matched = []
    for one, other in progress(pairs, total=len(pairs), label=f"{model.name}, pairs"):
        judged = find_matches(
            (features[one], features[other]),
            (loaded[one], loaded[other]),
            card,
            MatchOptions(ratio=options.ratio),
            JudgeOptions(),
        )
        kept = judged.matches[judged.returned]
        points = None if judged.refined is None else judged.refined[judged.returned]
        confidence = np.ones(len(kept), np.float32) if kept.confidence is None else kept.confidence
        if points is not None and len(kept):
            matched.append(
                RefinedPair((one, other), kept.pairs, points.xy1, points.is_refined, confidence)
            )
    moved = consistent_points(keypoints, matched)
    return MatchedScene(
        {
            name: replace(found, keypoints=replace(found.keypoints, xy=moved[name]))
            for name, found in features.items()
        },
        {m.images: m.pairs for m in matched},
    )
