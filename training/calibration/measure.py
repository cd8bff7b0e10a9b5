"""Match the pairs as they would be served, and keep what the matches amount to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from matchserve.hardware import available_cpus
from matchserve.matcher import Matcher, Options
from matchserve.models.descriptor import Descriptor
from matchserve.types import Features, VerifyKind
from matchserve.vision import geometry, matching
from matchserve.vision.evidence import Evidence, gather
from matchserve.vision.geometry import VerifyOptions
from matchserve.vision.keypoints import DetectOptions
from matchserve.vision.matching import MatchOptions, import_faiss
from training.calibration.pairs import ImagePair, PairSet
from training.data.parallel import progress


@dataclass(frozen=True, slots=True)
class Measured:
    """A pair and what its matches amount to, by kind of geometry."""

    pair: ImagePair
    evidence: Mapping[VerifyKind, Evidence]


def measure_pairs(
    descriptor: Descriptor, data: PairSet, kinds: Sequence[VerifyKind], threshold_px: float
) -> list[Measured]:
    """Describe every image once for each number of keypoints it is asked with, then match."""
    measured: list[Measured] = []
    for keypoints in sorted({pair.setting.max_keypoints for pair in data.pairs}):
        pairs = [pair for pair in data.pairs if pair.setting.max_keypoints == keypoints]
        features = _described(descriptor, data, pairs, keypoints)

        def work(pair: ImagePair, held: Mapping[str, Features] = features) -> Measured:
            import_faiss().omp_set_num_threads(1)  # one pair a core
            return _matched(pair, held, kinds, threshold_px)

        label = f"{descriptor.card.name}, matching"
        with ThreadPoolExecutor(available_cpus()) as pool:
            measured += progress(pool.map(work, pairs), total=len(pairs), label=label)
    return measured


def _described(
    descriptor: Descriptor, data: PairSet, pairs: Sequence[ImagePair], keypoints: int
) -> dict[str, Features]:
    matcher = Matcher(descriptor)
    options = Options(detect=DetectOptions(max_keypoints=keypoints))
    names = sorted({name for pair in pairs for name in pair.images})
    label = f"{descriptor.card.name}, {keypoints} keypoints"
    return {
        name: matcher.features(data.images[name](), options)
        for name in progress(names, total=len(names), label=label)
    }


def _matched(
    pair: ImagePair,
    features: Mapping[str, Features],
    kinds: Sequence[VerifyKind],
    threshold_px: float,
) -> Measured:
    one, other = (features[name] for name in pair.images)
    matches = matching.match(one, other, MatchOptions(ratio=pair.setting.ratio))
    points = (one.keypoints.xy[matches.pairs[:, 0]], other.keypoints.xy[matches.pairs[:, 1]])
    evidence = {}
    for kind in kinds:
        found = geometry.verify(*points, (one.size, other.size), VerifyOptions(kind, threshold_px))
        evidence[kind] = gather(one, other, matches, found)
    return Measured(pair, evidence)
