"""`Matcher`: two images in, matches out. The command line and the service run this same class."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import InvalidParameter, MissingInput
from matchserve.limits import DEFAULT_LIMITS, Limits
from matchserve.models.descriptor import Descriptor
from matchserve.models.registry import DEFAULT_MODEL, load_descriptor
from matchserve.types import Features, Image, MatchResult
from matchserve.vision import geometry, matching
from matchserve.vision.decode import ExifPolicy, decode, from_array
from matchserve.vision.geometry import VerifyOptions
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.matching import MatchOptions

ImageSource: TypeAlias = bytes | bytearray | memoryview | str | PathLike[str] | NDArray[Any] | Image
"""Encoded bytes, a path to a file, a uint8/uint16 array (grey or RGB), or a decoded image."""


@dataclass(frozen=True, slots=True)
class Options:
    """Everything one match may be asked to do differently."""

    detect: DetectOptions = field(default_factory=DetectOptions)
    match: MatchOptions = field(default_factory=MatchOptions)
    verify: VerifyOptions = field(default_factory=VerifyOptions)
    exif: ExifPolicy = "apply"


DEFAULT_OPTIONS = Options()


class Matcher:
    """Finds keypoints, describes them with one model and matches two images.

    Holds a loaded model and nothing of any request: one instance serves many threads.
    """

    def __init__(
        self,
        model: str | Descriptor = DEFAULT_MODEL,
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
        # The two images are independent until their descriptors meet.
        with ThreadPoolExecutor(2, thread_name_prefix="matchserve-image") as pool:
            sides = [pool.submit(self._features, s, options, clock) for s in (image0, image1)]
            features0, features1 = (side.result() for side in sides)
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
        return self._features(image, options, clock or StageClock())

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
        max_side = options.detect.max_side
        if isinstance(source, Image):
            return source
        if isinstance(source, np.ndarray):
            return from_array(source, max_side=max_side, limits=self.limits)
        if isinstance(source, str | PathLike):
            source = read_file(Path(source))
        if not isinstance(source, bytes | bytearray | memoryview):
            raise InvalidParameter(f"an image cannot be a {type(source).__name__}")
        return decode(source, exif=options.exif, max_side=max_side, limits=self.limits)

    def _features(self, source: ImageSource, options: Options, clock: StageClock) -> Features:
        if options.detect.max_keypoints > self.limits.max_keypoints:
            raise InvalidParameter(
                f"max_keypoints is {options.detect.max_keypoints}, "
                f"at most {self.limits.max_keypoints} are allowed",
                limit=self.limits.max_keypoints,
                value=options.detect.max_keypoints,
            )
        with clock.stage("decode"):
            image = self.load(source, options)
        with clock.stage("detect"):
            keypoints = detect(image, options.detect)
        with clock.stage("describe"):
            descriptors = self.descriptor.describe(image, keypoints)
        return Features(keypoints, descriptors, self.descriptor.card.name, image.size)

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
        return MatchResult(features0, features1, matches, verification, clock.timings_ms())


def match_images(
    image0: ImageSource, image1: ImageSource, model: str = DEFAULT_MODEL
) -> MatchResult:
    """Match two images with default options; keep a `Matcher` when there are more than two."""
    return Matcher(model).match(image0, image1)


def read_file(path: Path) -> bytes:
    """The bytes of an image file.

    Raises:
        MissingInput: it is not there, a directory, or not readable.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise MissingInput(f"cannot read {path}: {error.strerror or error}") from error


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
