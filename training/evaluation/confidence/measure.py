"""Match labelled pairs with a descriptor: cues, refinement and truth of every putative match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from matchserve.libraries import import_faiss
from matchserve.models.descriptor import Descriptor, KeypointDetector
from matchserve.models.detection import chosen_detector, find_keypoints
from matchserve.threads import off_main_thread
from matchserve.types import Bool, Features, Float32, Image, Keypoints
from matchserve.vision.confidence import FirstCues, first_cues
from matchserve.vision.keypoints import DetectOptions
from matchserve.vision.matching import putative
from matchserve.vision.refine import Refinement, refine
from training.data.parallel import progress
from training.evaluation.confidence.pairs import LabelledPair

RIGHT_PX = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredPair:
    """The putative matches of a pair.

    `is_right` is judged at the refined point where the refinement accepts the match, and
    `is_right_raw` at the keypoint.
    """

    pair: LabelledPair
    cues: FirstCues
    refinement: Refinement
    is_right: Bool
    is_right_raw: Bool


class KeypointStore:
    """Keypoints of images by name, found once for all models with the same detector."""

    def __init__(self) -> None:
        self._found: dict[tuple[KeypointDetector | None, str, DetectOptions], Keypoints] = {}

    def keypoints(
        self, descriptor: Descriptor, name: str, image: Image, rule: DetectOptions
    ) -> Keypoints:
        """Find the keypoints of an image as the service does, or return those found before.

        The best 512 keypoints are not the first of the best 2048: candidates give way to others.
        """
        key = (chosen_detector(descriptor, rule), name, rule)
        if key not in self._found:
            self._found[key] = off_main_thread(find_keypoints, descriptor, image, rule)
        return self._found[key]


def measure_pairs(
    descriptor: Descriptor, pairs: Sequence[LabelledPair], store: KeypointStore
) -> list[MeasuredPair]:
    """Match every pair as the service would, without any filter."""
    import_faiss().omp_set_num_threads(1)
    described: dict[tuple[str, int, bool], Features] = {}
    name = descriptor.card.name
    return [
        _measure(descriptor, pair, store, described)
        for pair in progress(pairs, total=len(pairs), label=name)
    ]


def _measure(
    descriptor: Descriptor,
    pair: LabelledPair,
    store: KeypointStore,
    described: dict[tuple[str, int, bool], Features],
) -> MeasuredPair:
    images = (pair.loaders[0](), pair.loaders[1]())
    sides = []
    for name, image in zip(pair.names, images, strict=True):
        key = (name, pair.max_keypoints, pair.is_upright)
        if key not in described:
            rule = DetectOptions(max_keypoints=pair.max_keypoints, upright=pair.is_upright)
            keypoints = store.keypoints(descriptor, name, image, rule)
            rows = descriptor.describe(image, keypoints)
            described[key] = Features(keypoints, rows, descriptor.card.name, image.size)
        sides.append(described[key])
    found = putative(sides[0], sides[1])
    rows0, rows1 = found.matches.pairs.T
    matched = (sides[0].keypoints[rows0], sides[1].keypoints[rows1])
    refinement = refine(images, matched)
    raw = pair.truth(matched[0].xy, matched[1].xy)
    refined = pair.truth(matched[0].xy, refinement.xy1)
    return MeasuredPair(
        pair,
        first_cues(found, matched),
        refinement,
        np.asarray(refined <= RIGHT_PX),
        np.asarray(raw <= RIGHT_PX),
    )


def masked(refinement: Refinement, raw_xy1: Float32, maps: Float32, kept: Bool) -> Refinement:
    """Return the refinement with the raw points of all matches but those that `kept` marks."""
    zero = np.float32(0)
    return Refinement(
        np.where(kept[:, None], refinement.xy1, raw_xy1),
        np.where(kept[:, None, None], refinement.affine, maps),
        np.where(kept, refinement.correlation, zero),
        np.where(kept, refinement.shift, zero),
        np.where(kept, refinement.area_change, zero),
        refinement.is_refined & kept,
    )
