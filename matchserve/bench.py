"""Time every stage beside OpenCV's SIFT with a brute-force matcher and ratio test.

Each model is timed with the default pipeline and with raw matches of the same features, so that
the share that confidence, refinement and geometry add is measured within one run. All runs are
interleaved in one process, and the best of several rounds counts: absolute times on
shared machines are noisy, ratios within one run are not.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np

from matchserve.libraries import import_faiss
from matchserve.matcher import Matcher
from matchserve.models.handcrafted import SIFT_PATCH
from matchserve.models.registry import load_descriptor
from matchserve.pipeline.judging import JudgeOptions, find_matches
from matchserve.types import Features, Image, Keypoints, PatchSpec, UInt8
from matchserve.vision import geometry, matching
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.matching import MatchOptions
from matchserve.vision.patches import crop

PEER = "OpenCV SIFT + BF ratio"
RAW = "{}, raw matches"
"""Name of the pipeline of a model without confidence, refinement and progressive sampling."""
STAGES = ("detect", "describe", "match", "verify", "total")


@dataclass(slots=True)
class Timing:
    """The best CPU and wall times so far, in milliseconds."""

    cpu_ms: float = float("inf")
    wall_ms: float = float("inf")

    def add(self, work: Callable[[], Any]) -> Any:
        """Run `work`, keep its times if they are the best, and return its result."""
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        self.keep(1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall))
        return result

    def keep(self, cpu_ms: float, wall_ms: float) -> None:
        """Keep times that are the best so far."""
        self.cpu_ms, self.wall_ms = min(self.cpu_ms, cpu_ms), min(self.wall_ms, wall_ms)


@dataclass(slots=True)
class Report:
    """Times of whole pipelines by stage, and of components beside those that they replace."""

    threads: int
    keypoints: int
    size: tuple[int, int]
    rounds: int
    pipelines: dict[str, dict[str, Timing]] = field(default_factory=dict)
    components: dict[str, tuple[Timing, Timing]] = field(default_factory=dict)

    def ratio(self, name: str) -> float:
        """Return the CPU time of a pipeline divided by that of OpenCV's SIFT."""
        return self.pipelines[name]["total"].cpu_ms / self.pipelines[PEER]["total"].cpu_ms

    def has_raw(self, name: str) -> bool:
        """Return whether the raw matches of a pipeline were timed beside it."""
        return RAW.format(name) in self.pipelines

    def added_share(self, name: str) -> float:
        """Return what confidence, refinement and geometry add to the CPU time of a raw match.

        The raw match is detection, description and mutual nearest neighbours, without geometry.
        """
        raw, ours = self.pipelines[RAW.format(name)], self.pipelines[name]
        base = sum(raw[stage].cpu_ms for stage in ("detect", "describe", "match"))
        added = ours["match"].cpu_ms + ours["verify"].cpu_ms - raw["match"].cpu_ms
        return added / base

    def fields(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON."""
        return {
            "threads": self.threads,
            "max_keypoints": self.keypoints,
            "image_size": self.size,
            "rounds": self.rounds,
            "pipelines": {
                name: {
                    "cpu_ms": {stage: timing.cpu_ms for stage, timing in stages.items()},
                    "wall_ms": {stage: timing.wall_ms for stage, timing in stages.items()},
                    "ratio": self.ratio(name),
                    **({"added_share": self.added_share(name)} if self.has_raw(name) else {}),
                }
                for name, stages in self.pipelines.items()
            },
            "components": {
                name: {
                    "cpu_ms": ours.cpu_ms,
                    "peer_cpu_ms": peer.cpu_ms,
                    "speedup": peer.cpu_ms / ours.cpu_ms,
                }
                for name, (ours, peer) in self.components.items()
            },
        }


def run(
    pair: tuple[Image, Image],
    models: Sequence[str],
    *,
    keypoints: int = 2048,
    threads: int = 1,
    rounds: int = 5,
) -> Report:
    """Time the pipelines of all models and of OpenCV's SIFT on `pair`, and our components."""
    report = Report(threads, keypoints, pair[0].size, rounds)
    matchers = {name: Matcher(load_descriptor(name, threads=threads)) for name in models}
    failures: list[BaseException] = []

    def work() -> None:
        try:
            # FAISS keeps its number for each thread, so it is set on the one that works.
            with _library_threads(threads):
                for _ in range(rounds):
                    _time_peer(report, pair, keypoints)
                    for name, matcher in matchers.items():
                        _time_pipeline(report, name, matcher, pair)
                    _time_components(report, pair[0])
        except BaseException as error:  # noqa: BLE001  raised again by the caller's thread
            failures.append(error)

    # On the main thread detection is twice as slow, also for OpenCV: see `off_main_thread`.
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return report


class _library_threads:  # noqa: N801  reads as a verb phrase in `with`
    """Set the number of threads of OpenCV and FAISS, and restore it at the end."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> None:
        faiss = import_faiss()
        self._before = (cv2.getNumThreads(), faiss.omp_get_max_threads())
        cv2.setNumThreads(self._count)
        faiss.omp_set_num_threads(self._count)

    def __exit__(self, *exc: object) -> None:
        cv2.setNumThreads(self._before[0])
        import_faiss().omp_set_num_threads(self._before[1])


def _time_peer(report: Report, pair: tuple[Image, Image], keypoints: int) -> None:
    stages = report.pipelines.setdefault(PEER, {"total": Timing()})

    def pipeline() -> int:
        sift = cv2.SIFT.create(nfeatures=keypoints)
        (_, left), (_, right) = (sift.detectAndCompute(i.grey, None) for i in pair)
        found = cv2.BFMatcher(cv2.NORM_L2).knnMatch(left, right, k=2)
        return sum(m.distance < 0.8 * n.distance for m, n in found)

    stages["total"].add(pipeline)


def _time_pipeline(report: Report, name: str, matcher: Matcher, pair: tuple[Image, Image]) -> None:
    """Time a model with the default options, and with raw matches of the same features."""
    raw, ours = (
        report.pipelines.setdefault(key, {stage: Timing() for stage in STAGES})
        for key in (RAW.format(name), name)
    )
    options = DetectOptions(max_keypoints=report.keypoints)
    spent = _Spent()
    found = spent.run("detect", lambda: [detect(image, options) for image in pair])
    left, right = spent.run(
        "describe", lambda: [_describe(matcher, i, k) for i, k in zip(pair, found, strict=True)]
    )
    sizes = (pair[0].size, pair[1].size)
    raw_spent = spent.copy()
    matches = raw_spent.run("match", lambda: matching.match(left, right))
    rows0, rows1 = matches.pairs.T
    points = (left.keypoints.xy[rows0], right.keypoints.xy[rows1])
    raw_spent.run("verify", lambda: geometry.verify(*points, sizes))
    raw_spent.add_to(raw)
    judged = spent.run(
        "match",
        lambda: find_matches(
            (left, right), pair, matcher.descriptor.card, MatchOptions(), JudgeOptions()
        ),
    )
    points0 = left.keypoints.xy[judged.matches.pairs[:, 0]]
    points1 = judged.points1(right.keypoints)
    confidence = judged.matches.confidence
    spent.run("verify", lambda: geometry.verify(points0, points1, sizes, None, confidence))
    spent.add_to(ours)


@dataclass(slots=True)
class _Spent:
    """CPU and wall times of the stages of one round, in milliseconds."""

    stages: dict[str, tuple[float, float]] = field(default_factory=dict)

    def run(self, stage: str, work: Callable[[], Any]) -> Any:
        """Run `work`, keep its times, and return its result."""
        timing = Timing()
        result = timing.add(work)
        self.stages[stage] = (timing.cpu_ms, timing.wall_ms)
        return result

    def copy(self) -> _Spent:
        return _Spent(dict(self.stages))

    def add_to(self, timings: dict[str, Timing]) -> None:
        """Keep the stages, and their sum, that are the best so far."""
        cpu, wall = (sum(times) for times in zip(*self.stages.values(), strict=True))
        for stage, times in {**self.stages, "total": (cpu, wall)}.items():
            timings[stage].keep(*times)


def _describe(matcher: Matcher, image: Image, keypoints: Keypoints) -> Features:
    rows = matcher.descriptor.describe(image, keypoints)
    card = matcher.descriptor.card
    return Features(keypoints, rows, card.name, image.size, card.fingerprint)


def _time_components(report: Report, image: Image) -> None:
    """Time our crop beside a loop of warpAffine, and our matching beside two FAISS searches."""
    keypoints = detect(image, DetectOptions(max_keypoints=report.keypoints))
    ours, peer = report.components.setdefault("crop / warpAffine loop", (Timing(), Timing()))
    ours.add(lambda: crop(image, keypoints, SIFT_PATCH))
    peer.add(lambda: crop_by_loop(image, keypoints, SIFT_PATCH))
    for count in (2048, 8192):
        name = f"mutual NN / two FAISS searches, {count}x{count}"
        ours, peer = report.components.setdefault(name, (Timing(), Timing()))
        left, right = _random_rows(count, 0), _random_rows(count, 1)
        ours.add(functools.partial(matching.mutual_nn, left, right))
        peer.add(functools.partial(_two_searches, left, right))


def crop_by_loop(image: Image, keypoints: Keypoints, spec: PatchSpec) -> UInt8:
    """Cut the same patches with one `cv2.warpAffine` each; tests compare with this, too."""
    centre = (spec.size - 1) / 2
    pyramid: list[Any] = [np.asarray(image.grey)]
    patches = np.empty((len(keypoints), 1, spec.size, spec.size), np.uint8)
    for row, (x, y, sigma, angle) in enumerate(
        zip(*keypoints.xy.T, keypoints.sigma, keypoints.angle, strict=True)
    ):
        step = float(sigma) * spec.magnification / spec.size
        level = max(0, round(np.log2(step)))
        while len(pyramid) <= level:
            pyramid.append(cv2.pyrDown(pyramid[-1]))
        cosine, sine = np.cos(angle), np.sin(angle)
        turn = step / 2**level * np.array([[cosine, -sine], [sine, cosine]])
        shift = np.array([x, y]) / 2**level - turn @ np.array([centre, centre])
        patches[row, 0] = cv2.warpAffine(
            pyramid[level],
            np.column_stack([turn, shift]),
            (spec.size, spec.size),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )
    return patches


def _two_searches(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    faiss = import_faiss()
    _, forward = faiss.knn(left, right, 1, metric=faiss.METRIC_INNER_PRODUCT)
    _, back = faiss.knn(right, left, 1, metric=faiss.METRIC_INNER_PRODUCT)
    return np.flatnonzero(back[forward[:, 0], 0] == np.arange(len(left)))


def _random_rows(count: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, 128)).astype(np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))
