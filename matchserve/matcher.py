"""`Matcher`: two images in, matches out. The command line and the service run this same class."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import InvalidParameter, MissingInput
from matchserve.hardware import memory_limit_bytes
from matchserve.limits import DEFAULT_LIMITS, Limits
from matchserve.models.descriptor import Descriptor
from matchserve.models.registry import DEFAULT_MODEL, load_descriptor
from matchserve.types import Features, Image, Matches, MatchResult, Verification
from matchserve.vision import geometry, matching
from matchserve.vision.decode import ExifPolicy, decode, from_array
from matchserve.vision.evidence import gather
from matchserve.vision.geometry import VerifyOptions
from matchserve.vision.keypoints import DETECT_BYTES_PER_PIXEL, DetectOptions, detect
from matchserve.vision.matching import MatchOptions

ImageSource: TypeAlias = bytes | bytearray | memoryview | str | PathLike[str] | NDArray[Any] | Image
"""Encoded bytes, a path to a file, a uint8/uint16 array (grey or RGB), or a decoded image."""


@dataclass(frozen=True, slots=True)
class Options:
    """Everything one match may be asked to do differently.

    `exif` says whether an image is turned as its EXIF says; `max_side` finds and describes
    keypoints on a copy reduced to that side, and coordinates stay those of the image as sent.
    """

    detect: DetectOptions = field(default_factory=DetectOptions)
    match: MatchOptions = field(default_factory=MatchOptions)
    verify: VerifyOptions = field(default_factory=VerifyOptions)
    exif: ExifPolicy = "apply"
    max_side: int | None = None

    def __post_init__(self) -> None:
        if self.exif not in ("apply", "ignore"):
            raise InvalidParameter(f"exif is {self.exif!r}, not apply or ignore")
        if self.max_side is not None and self.max_side < 16:
            raise InvalidParameter(f"max_side is {self.max_side}, must be at least 16")


DEFAULT_OPTIONS = Options()


class Matcher:
    """Finds keypoints, describes them with one model and matches two images.

    Holds a loaded model and nothing of any request: one instance serves many threads.
    """

    def __init__(
        self,
        model: str | PathLike[str] | Descriptor = DEFAULT_MODEL,
        *,
        models_dir: Path | None = None,
        provider: str = "auto",
        threads: int | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """Load `model`: a name, a path to a model directory, or a descriptor made elsewhere.

        Raises:
            UnknownModel: no model of that name.
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

    def match(
        self, image0: ImageSource, image1: ImageSource, options: Options = DEFAULT_OPTIONS
    ) -> MatchResult:
        """Match two images.

        Raises:
            ImageError: one of them cannot be used.
        """
        clock = StageClock()
        self._check(options)
        # The two images are independent until their descriptors meet.
        with ThreadPoolExecutor(2, thread_name_prefix="matchserve-image") as pool:
            decoded = [pool.submit(self._decode, s, options, clock) for s in (image0, image1)]
            images = [image.result() for image in decoded]
        workers = 2 if _fit_in_memory(images) else 1
        with ThreadPoolExecutor(workers, thread_name_prefix="matchserve-image") as pool:
            described = [pool.submit(self._describe, i, options, clock) for i in images]
            features0, features1 = (features.result() for features in described)
        return self._match(features0, features1, options, clock)

    def features(
        self,
        image: ImageSource,
        options: Options = DEFAULT_OPTIONS,
        clock: StageClock | None = None,
    ) -> Features:
        """Keypoints and descriptors of one image; `clock` takes the time of each stage.

        Raises:
            ImageError: it cannot be used.
        """
        self._check(options)
        clock = clock or StageClock()
        return self._describe(self._decode(image, options, clock), options, clock)

    def match_features(
        self,
        features0: Features,
        features1: Features,
        options: Options = DEFAULT_OPTIONS,
        clock: StageClock | None = None,
    ) -> MatchResult:
        """Match two images that were described before.

        Raises:
            FeatureMismatch: by different models.
        """
        return self._match(features0, features1, options, clock or StageClock())

    def load(self, source: ImageSource, options: Options = DEFAULT_OPTIONS) -> Image:
        """Decode an image as `match` would.

        Raises:
            ImageError: it cannot be used.
            MissingInput: the path cannot be read.
        """
        if isinstance(source, Image):
            return source
        if isinstance(source, np.ndarray):
            return from_array(source, max_side=options.max_side, limits=self.limits)
        if isinstance(source, str | PathLike):
            source = read_file(Path(source), self.limits)
        if not isinstance(source, bytes | bytearray | memoryview):
            raise InvalidParameter(f"an image cannot be a {type(source).__name__}")
        return decode(source, exif=options.exif, max_side=options.max_side, limits=self.limits)

    def _check(self, options: Options) -> None:
        if options.detect.max_keypoints > self.limits.max_keypoints:
            raise InvalidParameter(
                f"max_keypoints is {options.detect.max_keypoints}, "
                f"at most {self.limits.max_keypoints} are allowed",
                limit=self.limits.max_keypoints,
                value=options.detect.max_keypoints,
            )

    def _decode(self, source: ImageSource, options: Options, clock: StageClock) -> Image:
        with clock.stage("decode"):
            return self.load(source, options)

    def _describe(self, image: Image, options: Options, clock: StageClock) -> Features:
        with clock.stage("detect"):
            keypoints = detect(image, options.detect)
        with clock.stage("describe"):
            descriptors = self.descriptor.describe(image, keypoints)
        card = self.descriptor.card
        return Features(keypoints, descriptors, card.name, image.size, card.fingerprint)

    def _match(
        self, features0: Features, features1: Features, options: Options, clock: StageClock
    ) -> MatchResult:
        with clock.stage("match"):
            matches = matching.match(features0, features1, options.match)
        with clock.stage("verify"):
            verification = geometry.verify(
                features0.keypoints.xy[matches.pairs[:, 0]],
                features1.keypoints.xy[matches.pairs[:, 1]],
                (features0.size, features1.size),
                options.verify,
            )
            same_scene = self._same_scene(features0, features1, matches, verification)
        timings = clock.timings_ms()
        return MatchResult(features0, features1, matches, verification, timings, same_scene)

    def _same_scene(
        self,
        features0: Features,
        features1: Features,
        matches: Matches,
        verification: Verification,
    ) -> float | None:
        """The probability that the card's calibration gives, if it is for these features."""
        card = self.descriptor.card
        if card.calibration is None or features0.model != card.name:
            return None
        found = gather(features0, features1, matches, verification)
        return card.calibration.probability(verification.kind, found)


def match_images(
    image0: ImageSource, image1: ImageSource, model: str = DEFAULT_MODEL
) -> MatchResult:
    """Match two images with default options; keep a `Matcher` when there are more than two."""
    return Matcher(model).match(image0, image1)


def _fit_in_memory(images: Sequence[Image]) -> bool:
    """Whether the pyramids of all images may be in memory at one time."""
    pixels = sum(image.grey.size for image in images)
    return DETECT_BYTES_PER_PIXEL * pixels < memory_limit_bytes() / 2


def read_file(path: Path, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """The bytes of an image file, no more than one beyond the limit on them.

    Raises:
        MissingInput: it is not there, a directory, or not readable.
    """
    try:
        with path.open("rb") as file:
            return file.read(limits.max_image_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise MissingInput(f"cannot read {path}: {reason}") from error


class StageClock:
    """Milliseconds per stage; a stage that runs for both images at once counts both."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._stages: list[tuple[str, float]] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage."""
        start = time.perf_counter()
        yield
        self._stages.append((name, 1e3 * (time.perf_counter() - start)))

    def timings_ms(self) -> dict[str, float]:
        """Milliseconds by stage, and `total`, the wall time since the clock was made."""
        sums: dict[str, float] = {}
        for name, duration in self._stages:
            sums[name] = sums.get(name, 0.0) + duration
        return {**sums, "total": 1e3 * (time.perf_counter() - self._start)}
