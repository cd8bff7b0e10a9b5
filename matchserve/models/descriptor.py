"""What every descriptor can do, learned or hand-crafted."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from matchserve.models.card import ModelCard
from matchserve.types import Image, Keypoints, UInt8


class Descriptor(Protocol):
    """Turns keypoints or patches into descriptor rows; safe to call from many threads.

    Rows are float32 unit vectors, or packed bits as uint8, as `card.kind` says.
    """

    @property
    def card(self) -> ModelCard:
        """What this descriptor is."""
        ...

    @property
    def provider(self) -> str:
        """What it really runs on, e.g. `CPUExecutionProvider`."""
        ...

    def describe(self, image: Image, keypoints: Keypoints) -> NDArray[Any]:
        """Describe keypoints of an image: one row each."""
        ...

    def describe_patches(self, patches: UInt8) -> NDArray[Any]:
        """Describe (N, 1, S, S) patches cut as `card.patch` says: one row each."""
        ...
