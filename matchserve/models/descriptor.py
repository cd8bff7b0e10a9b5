"""The interfaces of a descriptor, learned or hand-crafted, and of a learned detector."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from matchserve.clock import Call
from matchserve.models.card import ModelCard
from matchserve.types import Image, Keypoints, UInt8
from matchserve.vision.keypoints import Check, DetectOptions, Region


class KeypointDetector(Protocol):
    """Finds keypoints; safe to call from many threads."""

    @property
    def is_default(self) -> bool:
        """Whether requests that name no detector use this one."""
        ...

    def detect(
        self, image: Image, options: DetectOptions, mask: Region | None, check: Check
    ) -> Keypoints:
        """Find the keypoints of an image, best first, in pixels of the image as sent."""
        ...


class Descriptor(Protocol):
    """Turns keypoints or patches into descriptor rows; safe to call from many threads.

    Rows are float32 unit vectors, or packed bits as uint8, as `card.kind` says.
    """

    @property
    def card(self) -> ModelCard:
        """The model card."""
        ...

    @property
    def provider(self) -> str:
        """What the model really runs on, e.g. `CPUExecutionProvider`."""
        ...

    @property
    def detector(self) -> KeypointDetector | None:
        """The learned detector that comes with the model, if any."""
        ...

    def describe(
        self, image: Image, keypoints: Keypoints, call: Call | None = None
    ) -> NDArray[Any]:
        """Return one row for each keypoint; the clock of `call` measures cropping and inference."""
        ...

    def describe_patches(self, patches: UInt8, call: Call | None = None) -> NDArray[Any]:
        """Return one row for each of (N, 1, S, S) patches, which were cut as `card.patch` says."""
        ...
