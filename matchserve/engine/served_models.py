"""Models as the service runs them: patches of all requests go through one batcher per model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.clock import Call, Deadline
from matchserve.decoding.detection import Detector, detect_here
from matchserve.engine.batcher import Batcher, BatchPolicy
from matchserve.errors import ModelError
from matchserve.feature_cache import FeatureCache
from matchserve.limits import SERVICE_LIMITS, Limits
from matchserve.matcher import Matcher
from matchserve.models.card import ModelCard
from matchserve.models.descriptor import Descriptor, KeypointDetector
from matchserve.models.execution import DeviceOptions
from matchserve.models.handcrafted import HandcraftedDescriptor
from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.models.registry import list_models, load_descriptor, provider_for
from matchserve.types import Image, Keypoints, UInt8
from matchserve.vision.decode import Decoder
from matchserve.vision.patches import crop

_log = logging.getLogger(__name__)

OnBatch = Callable[[int, int], None]
"""Called with the number of patches and of requests in each batch."""


def _ignore_batch(_patches: int, _requests: int) -> None:
    """Do nothing with the size of a batch."""


@dataclass(frozen=True, slots=True)
class MatcherResources:
    """What the matchers of all models share."""

    limits: Limits = SERVICE_LIMITS
    cache: FeatureCache | None = None
    executor: Executor | None = None
    decoder: Decoder | None = None
    detector: Detector = detect_here


class ServedModel:
    """One loaded model, its batcher, and the matcher that all requests for it share."""

    def __init__(
        self,
        load: Callable[[], Descriptor],
        policy: BatchPolicy,
        resources: MatcherResources | None = None,
        on_batch: OnBatch = _ignore_batch,
    ) -> None:
        """Load the model with `load`, which is called again after repeated failures.

        Raises:
            ModelError: the model cannot be used.
        """
        self.descriptor = first = load()
        policy = policy_for(first, policy)
        unused = [first]  # the batcher opens the model once more: it gets the one just loaded

        def open_model() -> Callable[[UInt8], NDArray[Any]]:
            self.descriptor = unused.pop() if unused else load()
            return self.descriptor.describe_patches

        resources = resources or MatcherResources()
        self.batcher = Batcher(open_model, policy, on_batch=on_batch)
        self.batched = BatchedDescriptor(self)
        self.matcher = Matcher(
            self.batched,
            limits=resources.limits,
            cache=resources.cache,
            executor=resources.executor,
        )
        if resources.decoder is not None:
            self.matcher.describer.decoder = resources.decoder
        self.matcher.describer.detector = resources.detector

    @property
    def card(self) -> ModelCard:
        """The model card."""
        return self.descriptor.card

    def probe(self, timeout_s: float) -> None:
        """Describe one patch through the batcher, as a request would.

        Raises:
            MatchServeError: the model failed or did not answer in time.
        """
        size = self.card.patch.size
        gradient = np.arange(size * size, dtype=np.uint32).reshape(1, 1, size, size)
        self.batcher.submit((gradient % 251).astype(np.uint8), Deadline(timeout_s))


def policy_for(descriptor: Descriptor, policy: BatchPolicy) -> BatchPolicy:
    """Adapt a policy for the CPU to a model on devices: lanes that feed them, larger batches."""
    if not (isinstance(descriptor, OnnxDescriptor) and descriptor.is_on_device):
        return policy
    return replace(policy, lanes=descriptor.concurrency, max_patches=descriptor.batch)


class BatchedDescriptor:
    """A descriptor that sends its patches to the batcher of a served model."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    @property
    def card(self) -> ModelCard:
        """The model card."""
        return self._model.card

    @property
    def provider(self) -> str:
        """What the model really runs on."""
        return self._model.descriptor.provider

    @property
    def detector(self) -> KeypointDetector | None:
        """The learned detector that comes with the model, if any."""
        return self._model.descriptor.detector

    def describe(
        self, image: Image, keypoints: Keypoints, call: Call | None = None
    ) -> NDArray[Any]:
        """Return one descriptor row for each keypoint of an image."""
        call = call or Call()
        descriptor = self._model.descriptor
        if isinstance(descriptor, HandcraftedDescriptor):
            return descriptor.describe(image, keypoints, call)  # SIFT reads the image, not patches
        with call.clock.stage("crop"):
            patches = crop(image, keypoints, self.card.patch)
        return self.describe_patches(patches, call)

    def describe_patches(self, patches: UInt8, call: Call | None = None) -> NDArray[Any]:
        """Return one row for each of (N, 1, S, S) patches.

        The time before the first batch starts counts as the stage `queue`, the rest as `infer`.
        """
        if len(patches) == 0:
            dtype = np.float32 if self.card.kind == "float" else np.uint8
            return np.zeros((0, self.card.row_length), dtype)
        call = call or Call()
        batcher = self._model.batcher
        with call.clock.stage("infer"):
            job = batcher.enqueue(patches, call.clock.deadline, call.threads)
            rows = batcher.wait(job)
            if job.started_at is not None:
                call.clock.add("queue", job.started_at - job.queued_at)
        return rows


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Which models are loaded, and how they run."""

    models_dir: Path | None
    provider: str
    policy: BatchPolicy
    """How batches are made on the CPU."""
    devices: DeviceOptions = field(default_factory=DeviceOptions)
    resources: MatcherResources = field(default_factory=MatcherResources)


Models = dict[str, ServedModel | ModelError]


def load_models(options: LoadOptions, on_batch: OnBatch = _ignore_batch) -> Models:
    """Load every model; one that cannot be loaded is represented by its error."""
    models: Models = {}
    for name, card in list_models(options.models_dir).items():
        if isinstance(card, ModelError):
            models[name] = card
        else:
            models[name] = _load(name, options, on_batch)
        if isinstance(error := models[name], ModelError):
            _log.error("model %s is not ready: %s", name, error.message)
    return models


def _load(name: str, options: LoadOptions, on_batch: OnBatch) -> ServedModel | ModelError:
    provider = provider_for(name, options.provider)

    def load() -> Descriptor:
        # One thread per lane: two lanes are 1.4 to 1.7 times as fast as one session of two threads.
        return load_descriptor(
            name,
            models_dir=options.models_dir,
            provider=provider,
            threads=1,
            devices=options.devices,
        )

    try:
        return ServedModel(load, options.policy, options.resources, on_batch)
    except ModelError as error:
        return error
