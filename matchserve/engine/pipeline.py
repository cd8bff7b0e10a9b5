"""The stages of one request, on one core under load and on all of them for a lone request."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

import cv2

from matchserve.engine.cache import FeatureCache, content_key
from matchserve.engine.deadline import DeadlineClock
from matchserve.engine.patch_queue import Threads, one_thread
from matchserve.engine.served import ServedModel
from matchserve.limits import Limits
from matchserve.matcher import Matcher, Options
from matchserve.types import Features, MatchResult
from matchserve.vision.matching import import_faiss


@dataclass(frozen=True, slots=True)
class Task:
    """What one request asks for."""

    model: ServedModel
    options: Options
    clock: DeadlineClock
    threads: Threads = one_thread


class Pipeline:
    """Runs `Matcher` for many requests at once, with features kept for images seen before."""

    def __init__(self, limits: Limits, cache: FeatureCache) -> None:
        self.limits = limits
        self.cache = cache
        # OpenCV's own pool would start as many threads again for every request that runs.
        cv2.setNumThreads(1)
        import_faiss()  # now, and not in the first request
        # One: only a request that is alone has both its images described at once.
        self._second_image = ThreadPoolExecutor(1, thread_name_prefix="matchserve-image")

    def match(self, images: tuple[bytes, bytes], task: Task) -> MatchResult:
        """Match two encoded images; blocks.

        Raises:
            MatchServeError: anything that is wrong with the images, the model or the time.
        """
        if task.threads() > 1:
            second = self._second_image.submit(self.features, images[1], task)
            try:
                features0 = self.features(images[0], task)
            finally:
                # Even when the first image is refused: the place is ours until both threads end.
                wait([second])
            features1 = second.result()
        else:
            features0 = self.features(images[0], task)
            features1 = self.features(images[1], task)
        return self.match_features(features0, features1, task)

    def features(self, image: bytes, task: Task) -> Features:
        """Keypoints and descriptors of one encoded image, from the cache if it was seen before."""
        card = task.model.card
        with task.clock.stage("cache"):
            key = content_key(
                image,
                card.name,
                card.sha256,
                task.options.detect,
                task.options.exif,
                task.options.max_side,
            )
            found = self.cache.get(key)
        if found is not None:
            return found
        matcher = Matcher(task.model.bound(task.clock, task.threads), limits=self.limits)
        features = matcher.features(image, task.options, task.clock)
        self.cache.put(key, features)
        return features

    def match_features(self, features0: Features, features1: Features, task: Task) -> MatchResult:
        """Match two described images."""
        # OpenMP keeps this number per thread: it changes nothing for the other requests.
        import_faiss().omp_set_num_threads(task.threads())
        matcher = Matcher(task.model.bound(task.clock), limits=self.limits)
        return matcher.match_features(features0, features1, task.options, task.clock)

    def close(self) -> None:
        """End the helper threads."""
        self._second_image.shutdown(wait=False, cancel_futures=True)
