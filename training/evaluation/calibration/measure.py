"""Match pairs as the service would, and collect the evidence for the same scene.

Keypoints are sorted by strength, and a descriptor depends on its own keypoint only. The first 512
of 2048 keypoints are therefore those of a request for 512, and each image is processed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from matchserve.hardware import available_cpus
from matchserve.libraries import import_faiss
from matchserve.models.descriptor import Descriptor
from matchserve.threads import off_main_thread
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
    """A pair and the evidence of its matches, by kind of geometry."""

    pair: ImagePair
    evidence: Mapping[VerifyKind, Evidence]


def find_keypoints(data: PairSet) -> dict[str, Keypoints]:
    """Detect the keypoints of all images, as many as the largest setting needs."""
    names = sorted({name for pair in data.pairs for name in pair.images})
    options = DetectOptions(max_keypoints=max(p.setting.max_keypoints for p in data.pairs))
    return {
        name: off_main_thread(detect, data.images[name](), options)
        for name in progress(names, total=len(names), label="keypoints")
    }


def measure_pairs(
    descriptor: Descriptor,
    data: PairSet,
    keypoints: Mapping[str, Keypoints],
    kinds: Sequence[VerifyKind],
    threshold_px: float,
) -> list[Measured]:
    """Describe all images, then match each pair with its setting."""
    name = descriptor.card.name
    features = {}
    for image_name in progress(keypoints, total=len(keypoints), label=f"{name}, describing"):
        image, points = data.images[image_name](), keypoints[image_name]
        rows = descriptor.describe(image, points)
        features[image_name] = Features(points, rows, name, image.size)

    def work(pair: ImagePair) -> Measured:
        import_faiss().omp_set_num_threads(1)  # pairs run in parallel, one per core
        return _measure(pair, features, kinds, threshold_px)

    with ThreadPoolExecutor(available_cpus()) as pool:
        label = f"{name}, matching"
        return list(progress(pool.map(work, data.pairs), total=len(data.pairs), label=label))


def _strongest(features: Features, count: int) -> Features:
    rows = slice(0, count)
    return Features(
        features.keypoints[rows], features.descriptors[rows], features.model, features.size
    )


def _measure(
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
        options = VerifyOptions(kind, threshold_px)
        verification = geometry.verify(*points, (one.size, other.size), options)
        evidence[kind] = gather(one, other, matches, verification)
    return Measured(pair, evidence)
