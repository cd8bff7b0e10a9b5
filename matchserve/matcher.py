"""`Matcher`: match two images. The library, the command line and the service all run this class."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from matchserve import defaults
from matchserve.clock import Call, one_thread
from matchserve.errors import InvalidParameter
from matchserve.feature_cache import FeatureCache, content_key
from matchserve.files import read_file
from matchserve.hardware import available_cpus, memory_limit_bytes
from matchserve.libraries import import_faiss
from matchserve.limits import LIBRARY_LIMITS, MIN_WORKING_SIDE, Limits
from matchserve.models.descriptor import Descriptor
from matchserve.models.registry import load_descriptor
from matchserve.threads import off_main_thread
from matchserve.types import Features, Image, Matches, MatchResult, Verification
from matchserve.vision import geometry, matching
from matchserve.vision.decode import Decoder, ExifPolicy, InProcessDecoder, from_array
from matchserve.vision.evidence import gather
from matchserve.vision.geometry import VerifyOptions
from matchserve.vision.keypoints import DETECT_BYTES_PER_PIXEL, DetectOptions, detect
from matchserve.vision.matching import MatchOptions

T = TypeVar("T")
S = TypeVar("S")

ImageSource: TypeAlias = bytes | bytearray | memoryview | str | PathLike[str] | NDArray[Any] | Image
"""Encoded bytes, a path to a file, a uint8/uint16 array (grey or RGB), or a decoded image."""


@dataclass(frozen=True, slots=True)
class Options:
    """All options of a match.

    `exif` says whether the image is rotated as its EXIF orientation says. Keypoints are found and
    described on a copy whose longest side is at most `max_side` pixels (0 for the full size);
    coordinates are always those of the image as sent.
    """

    detect: DetectOptions = field(default_factory=DetectOptions)
    match: MatchOptions = field(default_factory=MatchOptions)
    verify: VerifyOptions = field(default_factory=VerifyOptions)
    exif: ExifPolicy = "apply"
    max_side: int = defaults.MAX_SIDE

    def __post_init__(self) -> None:
        if self.exif not in ("apply", "ignore"):
            raise InvalidParameter(f"exif is {self.exif!r}, not apply or ignore")
        if self.max_side and self.max_side < MIN_WORKING_SIDE:
            raise InvalidParameter(
                f"max_side is {self.max_side}, must be 0 for the full size "
                f"or at least {MIN_WORKING_SIDE}"
            )


DEFAULT_OPTIONS = Options()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A decoded image, and the cache key of its features if they shall be cached."""

    image: Image
    key: Any = None


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
        self._cache = cache
        self._executor = executor
        self.decoder: Decoder = InProcessDecoder(limits)
        """Decodes images; the service sets one whose processes can be killed."""

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
        with self._pair_executor() as executor:
            run = _PairRunner(executor, call)
            loaded = run.both(
                lambda source: self._load_or_recall(source, options, call), (image0, image1)
            )
            is_parallel = _fit_in_memory([i.image for i in loaded if isinstance(i, _Loaded)])
            features0, features1 = run.both(
                lambda item: self._described(item, options, call), loaded, is_parallel=is_parallel
            )
        return self._match(features0, features1, options, call)

    def features(
        self, image: ImageSource, options: Options = DEFAULT_OPTIONS, call: Call | None = None
    ) -> Features:
        """Find and describe the keypoints of one image.

        Raises:
            ImageError: the image cannot be used.
        """
        call = call or Call()
        self._check(options)
        return self._described(self._load_or_recall(image, options, call), options, call)

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
        return self._match(features0, features1, options, call or Call())

    def load(
        self, source: ImageSource, options: Options = DEFAULT_OPTIONS, call: Call | None = None
    ) -> Image:
        """Decode an image as `match` does.

        Raises:
            ImageError: the image cannot be used.
            MissingInput: the file cannot be read.
        """
        if isinstance(source, Image):
            return source
        max_side = options.max_side or None
        if isinstance(source, np.ndarray):
            return from_array(source, max_side=max_side, limits=self.limits)
        data = self._encoded(source)
        deadline = (call or Call()).clock.deadline
        return self.decoder.decode(data, exif=options.exif, max_side=max_side, deadline=deadline)

    def _encoded(self, source: ImageSource) -> bytes | bytearray | memoryview:
        """Return the bytes of an encoded image."""
        if isinstance(source, str | PathLike):
            return read_file(Path(source), self.limits.max_image_bytes)
        if not isinstance(source, bytes | bytearray | memoryview):
            raise InvalidParameter(f"an image cannot be a {type(source).__name__}")
        return source

    def _check(self, options: Options) -> None:
        if options.detect.max_keypoints > self.limits.max_keypoints:
            raise InvalidParameter(
                f"max_keypoints is {options.detect.max_keypoints}, "
                f"at most {self.limits.max_keypoints} are allowed",
                limit=self.limits.max_keypoints,
                value=options.detect.max_keypoints,
            )

    def _load_or_recall(
        self, source: ImageSource, options: Options, call: Call
    ) -> _Loaded | Features:
        """Return the cached features of an encoded image, or decode the image."""
        key = None
        if self._cache is not None and not isinstance(source, Image | np.ndarray):
            source = self._encoded(source)
            with call.clock.stage("cache"):
                key = self._cache_key(source, options)
                cached = self._cache.get(key)
            if cached is not None:
                return cached
        with call.clock.stage("decode"):
            return _Loaded(self.load(source, options, call), key)

    def _cache_key(self, data: bytes | bytearray | memoryview, options: Options) -> Any:
        card = self.descriptor.card
        return content_key(
            data, card.name, card.sha256, options.detect, options.exif, options.max_side
        )

    def _described(self, item: _Loaded | Features, options: Options, call: Call) -> Features:
        if isinstance(item, Features):
            return item
        image = item.image
        with call.clock.stage("detect"):
            keypoints = off_main_thread(detect, image, options.detect)
        with call.clock.stage("describe"):
            descriptors = self.descriptor.describe(image, keypoints, call)
        card = self.descriptor.card
        features = Features(
            keypoints, descriptors, card.name, image.size, card.fingerprint, image.working_size
        )
        if self._cache is not None and item.key is not None:
            self._cache.put(item.key, features)
        return features

    def _match(
        self, features0: Features, features1: Features, options: Options, call: Call
    ) -> MatchResult:
        with call.clock.stage("match"):
            # OpenMP keeps this number per thread: it changes nothing for other calls.
            import_faiss().omp_set_num_threads(call.threads())
            matches = matching.match(features0, features1, options.match)
        with call.clock.stage("verify"):
            verification = geometry.verify(
                features0.keypoints.xy[matches.pairs[:, 0]],
                features1.keypoints.xy[matches.pairs[:, 1]],
                (features0.size, features1.size),
                options.verify,
            )
            same_scene = self._same_scene(features0, features1, matches, verification)
        timings = call.clock.timings_ms()
        return MatchResult(features0, features1, matches, verification, timings, same_scene)

    def _same_scene(
        self,
        features0: Features,
        features1: Features,
        matches: Matches,
        verification: Verification,
    ) -> float | None:
        """Return the calibrated probability, or None if the card has no calibration for it."""
        card = self.descriptor.card
        if card.calibration is None or features0.model != card.name:
            return None
        evidence = gather(features0, features1, matches, verification)
        return card.calibration.probability(verification.kind, evidence)

    @contextmanager
    def _pair_executor(self) -> Iterator[Executor]:
        """Yield the executor of the second image, or a short-lived one."""
        if self._executor is not None:
            yield self._executor
        else:
            with ThreadPoolExecutor(1, thread_name_prefix="matchserve-image") as pool:
                yield pool


@dataclass(frozen=True, slots=True)
class _PairRunner:
    """Runs the same work for both images, at the same time if the call may use two threads."""

    executor: Executor
    call: Call

    def both(
        self, work: Callable[[S], T], items: Sequence[S], *, is_parallel: bool = True
    ) -> tuple[T, T]:
        """Return the results of both items."""
        first, second = items
        if not is_parallel or self.call.threads() < 2:
            return work(first), work(second)
        future = self.executor.submit(work, second)
        try:
            result = work(first)
        finally:
            # Also after an error in the first image: the caller owns its memory until both end.
            wait([future])
        return result, future.result()


def match_images(
    image0: ImageSource, image1: ImageSource, model: str = defaults.MODEL
) -> MatchResult:
    """Match two images with default options; keep a `Matcher` when there are more than two."""
    return Matcher(model).match(image0, image1)


def _fit_in_memory(images: Sequence[Image]) -> bool:
    """Return whether keypoints can be found in all images at the same time."""
    pixels = sum(image.grey.size for image in images)
    return DETECT_BYTES_PER_PIXEL * pixels < memory_limit_bytes() / 2
