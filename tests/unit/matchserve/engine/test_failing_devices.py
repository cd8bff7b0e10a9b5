"""The batcher on devices that run out of memory, fail, or come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from matchserve.clock import Deadline
from matchserve.engine.batcher import Batcher, BatchPolicy
from matchserve.errors import DeviceLost, DeviceOutOfMemory, ProviderUnavailable
from matchserve.models.execution import Devices

OUT_OF_MEMORY = "CUDA failure 2: out of memory ; GPU=0"
LOST = "CUDA failure 719: unspecified launch failure ; GPU=0"


class Device:
    """A session with memory for some patches, that fails when it is told to."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.is_lost = False
        self.batches: list[int] = []

    def run(self, patches: np.ndarray) -> np.ndarray:
        if self.is_lost:
            raise RuntimeError(LOST)
        if len(patches) > self.memory:
            raise RuntimeError(OUT_OF_MEMORY)
        self.batches.append(len(patches))
        return patches.reshape(len(patches), -1)[:, :3].astype(np.float32)


@contextmanager
def batcher(open_model: Callable[[], Any]) -> Iterator[Batcher]:
    made = Batcher(open_model, BatchPolicy(lanes=2, max_patches=1024))
    try:
        yield made
    finally:
        made.close()


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what a lane does after it told the request."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def patches(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 1, 4, 4), np.uint8)


def test_batches_shrink_to_what_the_device_holds() -> None:
    device = Device(memory=200)
    with batcher(lambda: Devices([device], 1024).run) as running:  # type: ignore[list-item]
        given = patches(900)
        rows = running.submit(given, Deadline(20))
    np.testing.assert_array_equal(rows, given.reshape(900, -1)[:, :3])
    assert max(device.batches) <= 200


def test_without_memory_the_request_gets_a_typed_error_and_the_next_is_served() -> None:
    device = Device(memory=2)
    with batcher(lambda: Devices([device], 1024).run) as running:  # type: ignore[list-item]
        with pytest.raises(DeviceOutOfMemory):
            running.submit(patches(100), Deadline(20))
        device.memory = 1000
        assert len(running.submit(patches(100), Deadline(20))) == 100


def test_a_lost_device_is_reported_until_the_model_can_be_opened_again() -> None:
    devices = [Device(memory=1000)]
    opened = 0

    def open_model() -> Any:
        nonlocal opened
        opened += 1
        if devices[0].is_lost:
            raise ProviderUnavailable("no device")
        return Devices([devices[0]], 1024).run  # type: ignore[list-item]

    with batcher(open_model) as running:
        assert len(running.submit(patches(5), Deadline(20))) == 5
        devices[0].is_lost = True
        for _ in range(3):
            with pytest.raises(DeviceLost):
                running.submit(patches(5), Deadline(20))
        eventually(lambda: opened == 2)  # three failures open the model again
        devices[0] = Device(memory=1000)
        for _ in range(3):
            with pytest.raises(DeviceLost):
                running.submit(patches(5), Deadline(20))
        eventually(lambda: running.rebuilds == 1)
        assert len(running.submit(patches(5), Deadline(20))) == 5
