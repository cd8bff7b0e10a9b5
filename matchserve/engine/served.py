"""A model as the service runs it: its patches go through a batcher that all requests share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.engine.batcher import Batcher, BatchPolicy
from matchserve.engine.deadline import Deadline, DeadlineClock
from matchserve.engine.patch_queue import Threads, one_thread
from matchserve.errors import ModelError
from matchserve.models.card import ModelCard
from matchserve.models.descriptor import Descriptor
from matchserve.models.handcrafted import HandcraftedDescriptor
from matchserve.models.registry import list_models, load_descriptor, provider_for
from matchserve.types import Image, Keypoints, UInt8
from matchserve.vision.patches import crop

_log = logging.getLogger(__name__)


class ServedModel:
    """One loaded model and its batcher."""

    def __init__(
        self,
        make: Callable[[], Descriptor],
        policy: BatchPolicy,
        on_batch: Callable[[int, int], None] = lambda _patches, _jobs: None,
    ) -> None:
        """Open the model with `make`, which is called again after repeated failures.

        Raises:
            ModelError: the model cannot be used.
        """
        self.descriptor = first = make()
        spares = [first]  # the batcher's first call gets the one that was just opened

        def open_model() -> Callable[[UInt8], NDArray[Any]]:
            self.descriptor = spares.pop() if spares else make()
            return self.descriptor.describe_patches

        self.batcher = Batcher(open_model, policy, on_batch=on_batch)

    @property
    def card(self) -> ModelCard:
        """What the model is."""
        return self.descriptor.card

    def bound(self, clock: DeadlineClock, threads: Threads = one_thread) -> BoundDescriptor:
        """The model as one request sees it, on as many threads as that request may have."""
        return BoundDescriptor(self, clock, threads)

    def probe(self, timeout_s: float) -> None:
        """Describe one patch through the batcher, as a request would.

        Raises:
            MatchServeError: it did not answer, or not in time.
        """
        size = self.card.patch.size
        gradient = np.arange(size * size, dtype=np.uint32).reshape(1, 1, size, size)
        self.batcher.submit((gradient % 251).astype(np.uint8), Deadline(timeout_s))


@dataclass(frozen=True, slots=True)
class BoundDescriptor:
    """A descriptor whose patches join everybody's batches, with one request's deadline."""

    model: ServedModel
    clock: DeadlineClock
    threads: Threads = one_thread

    @property
    def card(self) -> ModelCard:
        """What the model is."""
        return self.model.card

    @property
    def provider(self) -> str:
        """What it really runs on."""
        return self.model.descriptor.provider

    def describe(self, image: Image, keypoints: Keypoints) -> NDArray[Any]:
        """Describe keypoints of an image: one row each."""
        inner = self.model.descriptor
        if isinstance(inner, HandcraftedDescriptor):
            return inner.describe(image, keypoints)  # SIFT reads the image, not patches
        with self.clock.stage("crop"):
            patches = crop(image, keypoints, self.card.patch)
        return self.describe_patches(patches)

    def describe_patches(self, patches: UInt8) -> NDArray[Any]:
        """Describe (N, 1, S, S) patches: one row each."""
        if len(patches) == 0:
            dtype = np.float32 if self.card.kind == "float" else np.uint8
            return np.zeros((0, self.card.row_length), dtype)
        batcher = self.model.batcher
        with self.clock.stage("infer"):
            job = batcher.enqueue(patches, self.clock.deadline, self.threads)
            rows = batcher.wait(job)
        if job.started_at is not None:
            self.clock.add("queue", job.started_at - job.queued_at)
        return rows


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Which models are loaded, and how they run."""

    models_dir: Path | None
    provider: str
    policy: BatchPolicy


Models = dict[str, ServedModel | ModelError]


def load_models(
    options: LoadOptions, on_batch: Callable[[int, int], None] = lambda _patches, _jobs: None
) -> Models:
    """Every model by name, opened, or what is wrong with it; one bad model harms no other."""
    models: Models = {}
    for name, card in list_models(options.models_dir).items():
        if isinstance(card, ModelError):
            models[name] = card
        else:
            models[name] = _load(name, options, on_batch)
        if isinstance(error := models[name], ModelError):
            _log.error("model %s is not ready: %s", name, error.message)
    return models


def _load(
    name: str, options: LoadOptions, on_batch: Callable[[int, int], None]
) -> ServedModel | ModelError:
    provider = provider_for(name, options.provider)

    def make() -> Descriptor:
        # One thread in each lane: two lanes beat one session with two threads by 1.4 to 1.7.
        return load_descriptor(name, models_dir=options.models_dir, provider=provider, threads=1)

    try:
        return ServedModel(make, options.policy, on_batch)
    except ModelError as error:
        return error
