"""Match pairs as the service would, and collect the evidence for the same scene.

The best 512 keypoints of an image are not the first of its best 2048, because candidates give way
to others. Each image is therefore processed once for each number of keypoints it is matched with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from matchserve.hardware import available_cpus
from matchserve.libraries import import_faiss
from matchserve.models import detection
from matchserve.models.descriptor import Descriptor
from matchserve.options import RAW_OPTIONS
from matchserve.pipeline.judging import JudgedMatches, JudgeOptions, find_matches
from matchserve.pipeline.orientations import CONVINCING_MATCHES
from matchserve.threads import off_main_thread
from matchserve.types import Features, Image, Keypoints, VerifyKind
from matchserve.vision import geometry
from matchserve.vision.evidence import Evidence, gather
from matchserve.vision.geometry import VerifyOptions
from matchserve.vision.keypoints import DetectOptions
from matchserve.vision.matching import MatchOptions
from training.data.parallel import progress
from training.evaluation.calibration.pairs import ImagePair, PairSet, Setting

_Pair: TypeAlias = tuple[Features, Features]
Detected: TypeAlias = Mapping[tuple[str, int], Keypoints]
"""Keypoints by the name of an image and the maximum number that was asked for."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A pair and the evidence of its matches, by kind of geometry."""

    pair: ImagePair
    evidence: Mapping[VerifyKind, Evidence]


@dataclass(frozen=True, slots=True, eq=False)
class Described:
    """An image with its features, turned by the orientations of the keypoints, and upright."""

    image: Image
    oriented: Features
    upright: Features

    @classmethod
    def of(cls, descriptor: Descriptor, image: Image, keypoints: Keypoints) -> Described:
        """Describe an image in both ways."""
        # Upright keypoints are the same ones with angle 0, strongest first as well.
        unturned = replace(keypoints, angle=np.zeros_like(keypoints.angle))
        oriented, upright = (
            Features(found, descriptor.describe(image, found), descriptor.card.name, image.size)
            for found in (keypoints, unturned)
        )
        return cls(image, oriented, upright)


def find_keypoints(data: PairSet, descriptor: Descriptor) -> Detected:
    """Detect the keypoints of all images, for every number of keypoints they are matched with."""
    wanted = sorted(
        {(name, pair.setting.max_keypoints) for pair in data.pairs for name in pair.images}
    )
    return {
        (name, count): off_main_thread(
            detection.find_keypoints,
            descriptor,
            data.images[name](),
            DetectOptions(max_keypoints=count),
        )
        for name, count in progress(wanted, total=len(wanted), label="keypoints")
    }


def measure_pairs(
    descriptor: Descriptor,
    data: PairSet,
    keypoints: Detected,
    kinds: Sequence[VerifyKind],
    threshold_px: float,
) -> list[Measured]:
    """Describe all images, then match each pair with its setting."""
    name = descriptor.card.name
    described = {
        key: Described.of(descriptor, data.images[key[0]](), keypoints[key])
        for key in progress(keypoints, total=len(keypoints), label=f"{name}, describing")
    }

    def work(pair: ImagePair) -> Measured:
        import_faiss().omp_set_num_threads(1)  # pairs run in parallel, one per core
        count = pair.setting.max_keypoints
        one, other = (described[image_name, count] for image_name in pair.images)
        features, judged = match_described(descriptor, one, other, pair.setting)
        return Measured(pair, _evidence(features, judged, kinds, threshold_px, pair.setting))

    with ThreadPoolExecutor(available_cpus()) as pool:
        label = f"{name}, matching"
        return list(progress(pool.map(work, data.pairs), total=len(data.pairs), label=label))


def match_described(
    descriptor: Descriptor, one: Described, other: Described, setting: Setting
) -> tuple[_Pair, JudgedMatches]:
    """Match two images as `Matcher.match` does, upright patches included where they are tried."""
    options = RAW_OPTIONS.judge if setting.is_raw else JudgeOptions()
    rule = MatchOptions(ratio=setting.ratio)

    def attempt(sides: _Pair) -> tuple[_Pair, JudgedMatches]:
        images = (one.image, other.image)
        return sides, find_matches(sides, images, descriptor.card, rule, options)

    found = attempt((one.oriented, other.oriented))
    has_confidence = found[1].matches.confidence is not None and not setting.is_raw
    if has_confidence and found[1].expected_right < CONVINCING_MATCHES:
        second = attempt((one.upright, other.upright))
        found = max(found, second, key=lambda each: each[1].expected_right)
    return found


def _evidence(
    features: _Pair,
    judged: JudgedMatches,
    kinds: Sequence[VerifyKind],
    threshold_px: float,
    setting: Setting,
) -> dict[VerifyKind, Evidence]:
    one, other = features
    matches = judged.matches
    points = (one.keypoints.xy[matches.pairs[:, 0]], judged.points1(other.keypoints))
    confidence = None if setting.is_raw else matches.confidence
    evidence: dict[VerifyKind, Evidence] = {}
    for kind in kinds:
        options = VerifyOptions(kind, threshold_px)
        verification = geometry.verify(*points, (one.size, other.size), options, confidence)
        evidence[kind] = gather(one, other, matches, verification, judged.putative)
    return evidence
