"""A device without hardware: a real model's card, rows made from pixels, a fixed time per batch."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from matchserve.clock import Call
from matchserve.models.card import ModelCard
from matchserve.models.execution import BUFFERS_PER_DEVICE, Devices
from matchserve.types import Image, Keypoints, PatchSpec, UInt8
from matchserve.vision.patches import crop

DIM = 16


class SleepingSession:
    """Describes batches one after the other, each in a fixed time, as a device does.

    A batch that is given while another runs starts when that one ends, even if no thread of the
    host is awake at that moment: a device has a queue of its own.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._free_at = 0.0

    def run(self, patches: np.ndarray) -> np.ndarray:
        with self._lock:
            end = self._free_at = max(time.perf_counter(), self._free_at) + self.seconds
        time.sleep(max(0.0, end - time.perf_counter()))
        rows = patches.reshape(len(patches), -1)[:, :: patches[0].size // DIM][:, :DIM] + 1.0
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(unit, np.float32)


class FakeDeviceDescriptor:
    """A descriptor whose model runs on sleeping devices, with as many buffers as real ones."""

    provider = "CUDAExecutionProvider"
    detector = None

    def __init__(self, *sessions: SleepingSession, batch: int) -> None:
        self.batch = batch
        buffers = list(sessions) * BUFFERS_PER_DEVICE
        self._devices = Devices(buffers, batch)  # type: ignore[arg-type]
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
