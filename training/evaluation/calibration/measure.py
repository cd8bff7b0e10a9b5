"""Match the pairs as they would be served, and keep what the matches amount to.

Keypoints come strongest first, and each descriptor depends on its own keypoint only: the first
512 of 2048 are what is found when 512 are asked for. So an image is looked at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from matchserve.hardware import available_cpus
from matchserve.libraries import import_faiss
from matchserve.models.descriptor import Descriptor
from matchserve.types import Features, Keypoints, VerifyKind
from matchserve.vision import geometry, matching
from matchserve.vision.evidence import Evidence, gather
from matchserve.vision.geometry import VerifyOptions
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.matching import MatchOptions
from training.data.parallel import progress
from training.evaluation.calibration.pairs import ImagePair, PairSet


@dataclass(frozen=True, slots=True)
class Measured:
    """A pair and what its matches amount to, by kind of geometry."""

    pair: ImagePair
    evidence: Mapping[VerifyKind, Evidence]


def find_keypoints(data: PairSet) -> dict[str, Keypoints]:
    """The keypoints of every image in a pair, as many as any setting asks for."""
    names = sorted({name for pair in data.pairs for name in pair.images})
    options = DetectOptions(max_keypoints=max(p.setting.max_keypoints for p in data.pairs))
    return {
        name: detect(data.images[name](), options)
        for name in progress(names, total=len(names), label="keypoints")
    }


def measure_pairs(
    descriptor: Descriptor,
    data: PairSet,
    keypoints: Mapping[str, Keypoints],
    kinds: Sequence[VerifyKind],
    threshold_px: float,
) -> list[Measured]:
    """Describe every image, then match every pair in its setting."""
    name = descriptor.card.name
    features = {}
    for image_name in progress(keypoints, total=len(keypoints), label=f"{name}, describing"):
        image, found = data.images[image_name](), keypoints[image_name]
        features[image_name] = Features(found, descriptor.describe(image, found), name, image.size)

    def work(pair: ImagePair) -> Measured:
        import_faiss().omp_set_num_threads(1)  # one pair a core
        return _matched(pair, features, kinds, threshold_px)

    with ThreadPoolExecutor(available_cpus()) as pool:
        label = f"{name}, matching"
        return list(progress(pool.map(work, data.pairs), total=len(data.pairs), label=label))


def _strongest(features: Features, count: int) -> Features:
    rows = slice(0, count)
    return Features(
        features.keypoints[rows], features.descriptors[rows], features.model, features.size
    )


def _matched(
    pair: ImagePair,
    features: Mapping[str, Features],
    kinds: Sequence[VerifyKind],
    threshold_px: float,
) -> Measured:
    count = pair.setting.max_keypoints
    one, other = (_strongest(features[name], count) for name in pair.images)
    matches = matching.match(one, other, MatchOptions(ratio=pair.setting.ratio))
    points = (one.keypoints.xy[matches.pairs[:, 0]], other.keypoints.xy[matches.pairs[:, 1]])
    evidence = {}
    for kind in kinds:
        found = geometry.verify(*points, (one.size, other.size), VerifyOptions(kind, threshold_px))
        evidence[kind] = gather(one, other, matches, found)
    return Measured(pair, evidence)
