"""Decode images, find and describe their keypoints, and remember the features."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from matchserve.clock import Call
from matchserve.decoding.detection import Detector, detect_here
from matchserve.errors import ImageError, InvalidParameter
from matchserve.feature_cache import FeatureCache, content_key
from matchserve.files import read_file
from matchserve.limits import Limits, check_keypoint_count
from matchserve.models.descriptor import Descriptor
from matchserve.models.detection import chosen_detector
from matchserve.options import Options
from matchserve.pipeline.inputs import ImageInput, ImageSource, PlainSource, as_input
from matchserve.pipeline.pair_runner import Source
from matchserve.threads import off_main_thread
from matchserve.types import Features, Image, Keypoints
from matchserve.vision.arrays import positions
from matchserve.vision.decode import Decoder, InProcessDecoder, from_array
from matchserve.vision.decode_cost import decoding_bytes
from matchserve.vision.given_points import place
from matchserve.vision.keypoints import DetectOptions
from matchserve.vision.pixels import inspect

DECODED_TOGETHER_BYTES = 100_000_000
"""Images whose decoders take more memory together are decoded one after the other."""


class Describer:
    """Describes images with one model; it holds no state of any call but the cache."""

    def __init__(self, descriptor: Descriptor, limits: Limits, cache: FeatureCache | None) -> None:
        self._descriptor = descriptor
        self._limits = limits
        self._cache = cache
        self.decoder: Decoder = InProcessDecoder(limits)
        """Decodes images; the service sets one whose processes can be killed."""
        self.detector: Detector = detect_here
        """Finds DoG keypoints; the service sets one that can be stopped at a deadline."""

    def load(self, image: ImageSource, options: Options, call: Call) -> Image:
        """Decode an image and reduce it to the working size.

        Raises:
            ImageError: the image cannot be used.
            MissingInput: the file cannot be read.
        """
        source = as_input(image).source
        if isinstance(source, Image):
            return source
        max_side = options.max_side or None
        if isinstance(source, np.ndarray):
            return from_array(source, max_side=max_side, limits=self._limits)
        data = self.encoded(source)
        deadline = call.clock.deadline
        return self.decoder.decode(data, exif=options.exif, max_side=max_side, deadline=deadline)

    def encoded(self, source: PlainSource) -> bytes | bytearray | memoryview:
        """Return the bytes of an encoded image."""
        if isinstance(source, str | PathLike):
            return read_file(Path(source), self._limits.max_image_bytes)
        if not isinstance(source, bytes | bytearray | memoryview):
            raise InvalidParameter(f"an image cannot be a {type(source).__name__}")
        return source

    def fit_together(self, images: Sequence[ImageSource]) -> bool:
        """Return whether encoded images may be decoded at the same time without much memory."""
        encoded = [as_input(image).source for image in images]
        held = [data for data in encoded if isinstance(data, bytes | bytearray | memoryview)]
        return sum(map(self._decoding_bytes, held)) <= DECODED_TOGETHER_BYTES

    def _decoding_bytes(self, data: bytes | bytearray | memoryview) -> int:
        try:
            return decoding_bytes(data, *inspect(data, limits=self._limits))
        except ImageError:
            return 0  # decoding says what is wrong

    def source(self, image: ImageSource, options: Options, call: Call) -> Source:
        """Prepare an image; it is decoded now unless its features may be in the cache."""
        given = as_input(image)
        if given.points is not None:
            limit = self._limits.max_keypoints
            check_keypoint_count(len(given.points), limit, "the number of given keypoints")
        if self._cache is None or isinstance(given.source, Image | np.ndarray):
            with call.clock.stage("decode"):
                return Source(given, self.load(given.source, options, call))
        return Source(given, data=self.encoded(given.source))

    def image(self, source: Source, options: Options, call: Call) -> Image:
        """Decode an image if it was not decoded yet."""
        if source.image is None:
            with call.clock.stage("decode"):
                source.image = self.load(source.data, options, call)
        return source.image

    def images(
        self, sources: tuple[Source, Source], options: Options, call: Call
    ) -> tuple[Image, Image]:
        """Decode both images of a pair if they were not decoded yet."""
        return self.image(sources[0], options, call), self.image(sources[1], options, call)

    def recall(
        self, source: Source, detect_options: DetectOptions, options: Options, call: Call
    ) -> Features | None:
        """Return the cached features of an encoded image."""
        if self._cache is None or not source.data:
            return None
        with call.clock.stage("cache"):
            return self._cache.get(self._cache_key(source, detect_options, options))

    def describe(
        self, source: Source, detect_options: DetectOptions, options: Options, call: Call
    ) -> Features:
        """Find and describe the keypoints of an image, and cache them."""
        image = self.image(source, options, call)
        with call.clock.stage("detect"):
            keypoints = self._find(image, source.given, detect_options, call)
        with call.clock.stage("describe"):
            descriptors = self._descriptor.describe(image, keypoints, call)
        card = self._descriptor.card
        counted = keypoints.xy if detect_options.duplicates else np.unique(positions(keypoints.xy))
        is_full = len(counted) >= detect_options.max_keypoints
        features = Features(
            *(keypoints, descriptors, card.name, image.size, card.fingerprint, image.working_size),
            truncated=is_full and source.given.points is None,
        )
        if self._cache is not None and source.data:
            self._cache.put(self._cache_key(source, detect_options, options), features)
        return features

    def _find(
        self, image: Image, given: ImageInput, detect_options: DetectOptions, call: Call
    ) -> Keypoints:
        """Return the given points of an image, or its keypoints."""
        deadline = call.clock.deadline
        if given.points is not None:
            is_upright = detect_options.upright
            return off_main_thread(
                place, given.points, image, is_upright=is_upright, check=deadline.check
            )
        learned = chosen_detector(self._descriptor, detect_options)
        if learned is None:
            return off_main_thread(self.detector, deadline, image, detect_options, given.mask)
        return off_main_thread(learned.detect, image, detect_options, given.mask, deadline.check)

    def _cache_key(self, source: Source, detect_options: DetectOptions, options: Options) -> Any:
        card = self._descriptor.card
        return content_key(
            source.data,
            *(card.name, card.sha256, source.given.key),
            *(detect_options, options.exif, options.max_side),
        )
