"""`Matcher`: match two images. The library, the command line and the service all run this class."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path

from matchserve import defaults
from matchserve.clock import Call, one_thread
from matchserve.errors import InvalidParameter
from matchserve.feature_cache import FeatureCache
from matchserve.hardware import available_cpus
from matchserve.limits import LIBRARY_LIMITS, Limits, check_keypoint_count
from matchserve.models.card import ModelCard
from matchserve.models.descriptor import Descriptor
from matchserve.models.registry import load_descriptor
from matchserve.options import DEFAULT_OPTIONS as DEFAULT_OPTIONS
from matchserve.options import Options as Options
from matchserve.options import with_geometry_of
from matchserve.pipeline.attempts import Attempt, judge_pair, verify_attempt
from matchserve.pipeline.describing import Describer
from matchserve.pipeline.guiding import agreeing, guided_attempt
from matchserve.pipeline.inputs import ImageInput as ImageInput
from matchserve.pipeline.inputs import ImageSource as ImageSource
from matchserve.pipeline.inputs import as_input
from matchserve.pipeline.orientations import OrientationAttempts
from matchserve.pipeline.pair_cameras import (
    FocalLengths,
    read_focal_lengths,
    wants_exif,
    with_cameras,
)
from matchserve.pipeline.pair_runner import PairRunner, Source
from matchserve.pipeline.view_search import SearchedImage, ViewSearch
from matchserve.types import Features, Image, MatchResult, Verification, ViewReport
from matchserve.vision.evidence import gather

# Fewer expected matches do not tell which orientation is the right one for views.
TELLING_MATCHES = 30.0


class Matcher:
    """Finds keypoints, describes them with one model and matches two images.

    It holds a loaded model and no state of any call: one instance serves many threads.
    """

    def __init__(
        self,
        model: str | PathLike[str] | Descriptor = defaults.MODEL,
        *,
        models_dir: Path | None = None,
        provider: str = "auto",
        threads: int | None = None,
        limits: Limits = LIBRARY_LIMITS,
        cache: FeatureCache | None = None,
        executor: Executor | None = None,
    ) -> None:
        """Load `model`: a name, a path to a model directory, or a loaded descriptor.

        `cache` keeps the features of encoded images that were described before. `executor` runs
        the second image of a pair; without one, each call starts a thread for it.

        Raises:
            UnknownModel: there is no model of that name.
            ModelError: the model cannot be used.
        """
        if isinstance(model, PathLike):
            model = os.path.join(model, "")  # noqa: PTH118  with a separator, so it is a path
        if isinstance(model, str):
            model = load_descriptor(
                model, models_dir=models_dir, provider=provider, threads=threads
            )
        self.descriptor = model
        self.limits = limits
        self.describer = Describer(model, limits, cache)
        self._executor = executor

    def match(
        self,
        image0: ImageSource,
        image1: ImageSource,
        options: Options = DEFAULT_OPTIONS,
        call: Call | None = None,
    ) -> MatchResult:
        """Match two images.

        Raises:
            ImageError: one of the images cannot be used.
        """
        call = call or Call()
        self._check(options)
        options = with_geometry_of(self.descriptor.card, options)
        focal_lengths: FocalLengths = (None, None)
        if wants_exif(options):
            encoded = tuple(
                self.describer.encoded(as_input(image).source) for image in (image0, image1)
            )
            focal_lengths = read_focal_lengths((encoded[0], encoded[1]), options, self.limits)
        with self._pair_executor() as executor:
            run = PairRunner(executor, call)
            sources = run.both(
                lambda source: self.describer.source(source, options, call),
                (image0, image1),
                is_parallel=self.describer.fit_together((image0, image1)),
            )
            attempts = OrientationAttempts(self.describer, self.descriptor, options, run).match(
                sources
            )
        sizes = (attempts[0].features[0].size, attempts[0].features[1].size)
        options = with_cameras(options, focal_lengths, sizes)
        found, verification, report = self._verified(sources, attempts, options, call)
        if options.guided:
            images = self.describer.images(sources, options, call)
            found, verification = self._guided(found, verification, images, options, call)
        return replace(self._result(found, verification, call), views=report)

    def features(
        self, image: ImageSource, options: Options = DEFAULT_OPTIONS, call: Call | None = None
    ) -> Features:
        """Find and describe the keypoints of one image.

        Raises:
            ImageError: the image cannot be used.
        """
        call = call or Call()
        self._check(options)
        source = self.describer.source(image, options, call)
        recalled = self.describer.recall(source, options.detect, options, call)
        if recalled is not None:
            return recalled
        return self.describer.describe(source, options.detect, options, call)

    def describe_images(
        self,
        images: Iterable[ImageSource],
        options: Options = DEFAULT_OPTIONS,
        *,
        workers: int | None = None,
    ) -> Iterator[Features]:
        """Find and describe the keypoints of many images, in their order.

        `workers` images are processed at the same time, each on one thread: the keypoints of the
        next images are found while a device describes those before. By default one more than
        there are cores.

        Raises:
            ImageError: an image cannot be used; those before it were yielded.
        """
        workers = workers or available_cpus() + 1

        def describe(image: ImageSource) -> Features:
            return self.features(image, options, Call(threads=one_thread))

        pending: deque[Future[Features]] = deque()
        with ThreadPoolExecutor(workers, thread_name_prefix="matchserve-image") as pool:
            try:
                for image in images:
                    pending.append(pool.submit(describe, image))
                    # As many wait as work, so that no thread idles and few results are held.
                    if len(pending) >= 2 * workers:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for future in pending:  # after an error, or if the caller wants no more
                    future.cancel()

    def match_features(
        self,
        features0: Features,
        features1: Features,
        options: Options = DEFAULT_OPTIONS,
        call: Call | None = None,
    ) -> MatchResult:
        """Match two images that were described before.

        Raises:
            FeatureMismatch: the images were described by different models.
        """
        call = call or Call()
        features = (features0, features1)
        options = with_geometry_of(self.descriptor.card, options)
        options = with_cameras(options, (None, None), (features0.size, features1.size))
        judged = judge_pair(features, None, self.descriptor.card, options, call)
        attempt = Attempt(features, judged, "oriented")
        verification = verify_attempt(attempt, options, call)
        if options.guided:
            attempt, verification = self._guided(attempt, verification, None, options, call)
        return self._result(attempt, verification, call)

    def load(
        self, source: ImageSource, options: Options = DEFAULT_OPTIONS, call: Call | None = None
    ) -> Image:
        """Decode an image as `match` does.

        Raises:
            ImageError: the image cannot be used.
            MissingInput: the file cannot be read.
        """
        return self.describer.load(source, options, call or Call())

    def _check(self, options: Options) -> None:
        check_keypoint_count(options.detect.max_keypoints, self.limits.max_keypoints)

    def _verified(
        self, sources: tuple[Source, Source], attempts: list[Attempt], options: Options, call: Call
    ) -> tuple[Attempt, Verification, ViewReport]:
        """Fit the geometry of the best attempt, and search synthetic views if it is not sure."""
        best = max(attempts, key=lambda attempt: attempt.judged.expected_right)
        if not _may_search_views(sources, self.descriptor.card, options):
            return best, verify_attempt(best, options, call), ViewReport()
        if options.views == "auto" and best.strength < defaults.HINT_MATCHES:
            reason = "the images as sent do not hint at a common scene"
            return best, verify_attempt(best, options, call), ViewReport(reason=reason)
        # Few matches are chance, whichever orientation has more of them: views of images that are
        # turned as well need oriented patches.
        start = best if best.strength >= TELLING_MATCHES else attempts[0]
        found, verification, report = self._search(sources, start, options, call)
        if found.strength < best.strength:
            found, verification = best, verify_attempt(best, options, call)
        return found, verification, report

    def _search(
        self, sources: tuple[Source, Source], frontal: Attempt, options: Options, call: Call
    ) -> tuple[Attempt, Verification, ViewReport]:
        """Match synthetic views too, after the images as sent."""
        first, second = (
            SearchedImage(self.describer.image(source, options, call), source.given.mask)
            for source in sources
        )
        return ViewSearch((first, second), self.descriptor, options, call).run(frontal)

    def _guided(
        self,
        attempt: Attempt,
        verification: Verification,
        images: tuple[Image, Image] | None,
        options: Options,
        call: Call,
    ) -> tuple[Attempt, Verification]:
        """Search more matches along the geometry, and fit it again if there are any."""
        with call.clock.stage("guide"):
            card = self.descriptor.card
            found = guided_attempt(attempt, verification, images, card, options)
        if found.guided is None:
            return attempt, verification
        return agreeing(found, verify_attempt(found, options, call))

    def _result(self, attempt: Attempt, verification: Verification, call: Call) -> MatchResult:
        """Make the result of the matches that are confident enough to be returned."""
        judged, refined = attempt.judged, attempt.judged.refined
        with call.clock.stage("verify"):
            same_scene = self._same_scene(attempt, verification)
        returned = judged.returned
        return MatchResult(
            *attempt.features,
            judged.matches[returned],
            replace(verification, inliers=verification.inliers[returned]),
            call.clock.timings_ms(),
            same_scene,
            None if refined is None else refined[returned],
            attempt.orientation,
            guided=None if attempt.guided is None else attempt.guided[returned],
        )

    def _same_scene(self, attempt: Attempt, verification: Verification) -> float | None:
        """Return the calibrated probability, or None if the card has no calibration for it."""
        card, judged = self.descriptor.card, attempt.judged
        if card.calibration is None or attempt.features[0].model != card.name:
            return None
        evidence = gather(*attempt.features, judged.matches, verification, judged.putative)
        return card.calibration.probability(verification.kind, evidence)

    @contextmanager
    def _pair_executor(self) -> Iterator[Executor]:
        """Yield the executor of the second image, or a short-lived one."""
        if self._executor is not None:
            yield self._executor
        else:
            with ThreadPoolExecutor(1, thread_name_prefix="matchserve-image") as pool:
                yield pool


def _may_search_views(sources: tuple[Source, Source], card: ModelCard, options: Options) -> bool:
    """Return whether synthetic views may be matched.

    Raises:
        InvalidParameter: they were asked for, but the keypoints are given.
    """
    has_given = any(source.given.points is not None for source in sources)
    if options.views == "auto":
        # A similarity is the map of images taken from one direction, and so are the pairs that
        # models which search a turn are made for (docs/research/match-quality.md).
        return not (has_given or card.searches_turn or options.verify.kind == "similarity")
    if has_given and options.views != 1:
        raise InvalidParameter("views need keypoints that are detected, not given ones")
    return options.views != 1


def match_images(
    image0: ImageSource, image1: ImageSource, model: str = defaults.MODEL
) -> MatchResult:
    """Match two images with default options; keep a `Matcher` when there are more than two."""
    return Matcher(model).match(image0, image1)
