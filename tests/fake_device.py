"""A device without hardware: a real model's card, rows made from pixels, a fixed time per batch."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from matchserve.clock import Call
from matchserve.models.card import ModelCard
from matchserve.models.execution import Devices
from matchserve.types import Image, Keypoints, PatchSpec, UInt8
from matchserve.vision.patches import crop

DIM = 16


class SleepingSession:
    """Describes a batch in a fixed time, like a device that the host only waits for."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._one_at_a_time = threading.Lock()
        self.batches: list[int] = []

    def run(self, patches: np.ndarray) -> np.ndarray:
        with self._one_at_a_time:
            time.sleep(self.seconds)
            self.batches.append(len(patches))
        rows = patches.reshape(len(patches), -1)[:, :: patches[0].size // DIM][:, :DIM] + 1.0
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(unit, np.float32)


class FakeDeviceDescriptor:
    """A descriptor whose model runs on sleeping devices."""

    provider = "CUDAExecutionProvider"

    def __init__(self, *sessions: SleepingSession, batch: int) -> None:
        self.batch = batch
        self._devices = Devices(list(sessions), batch)  # type: ignore[arg-type]
        self.card = ModelCard(
            name="sleeping",
            version="1",
            kind="float",
            dim=DIM,
            patch=PatchSpec(),
            licence="none",
            method="none",
        )

    def describe(self, image: Image, keypoints: Keypoints, call: Call | None = None) -> Any:
        return self.describe_patches(crop(image, keypoints, self.card.patch), call)

    def describe_patches(self, patches: UInt8, call: Call | None = None) -> Any:
        del call
        starts = range(0, len(patches), self.batch)
        return np.concatenate([self._devices.run(patches[i : i + self.batch]) for i in starts])
