"""Batches on devices that are fast, full, or gone."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from matchserve.errors import DeviceLost, DeviceOutOfMemory, InferenceFailed
from matchserve.models.execution import BoundSession, Devices, Signature, classify_failure
from matchserve.models.onnx_model import OnnxDescriptor

# As ONNX Runtime words them.
OUT_OF_MEMORY = "BFCArena: Failed to allocate memory for requested buffer of size 4831838208"
LOST = "CUDA failure 719: unspecified launch failure ; GPU=0 ; hostname=vm ; expr=cudaDeviceSync"


class FakeDevice:
    """A session that has memory for some patches, or fails."""

    def __init__(self, memory: int = 10**6, failure: str = "") -> None:
        self.memory, self.failure = memory, failure
        self.batches: list[int] = []

    def run(self, patches: np.ndarray) -> np.ndarray:
        if self.failure:
            raise RuntimeError(self.failure)
        if len(patches) > self.memory:
            raise RuntimeError(OUT_OF_MEMORY)
        self.batches.append(len(patches))
        return patches.reshape(len(patches), -1)[:, :4].astype(np.float32)


def devices(*fakes: FakeDevice, batch: int = 1024) -> Devices:
    return Devices(list(fakes), batch)  # type: ignore[arg-type]


def patches(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 1, 8, 8), np.uint8)


def rows_of(given: np.ndarray) -> np.ndarray:
    return given.reshape(len(given), -1)[:, :4].astype(np.float32)


def test_bound_buffers_give_what_a_plain_run_gives(tiny_model: Path) -> None:
    plain = OnnxDescriptor(tiny_model, provider="cpu", threads=1)
    size = plain.card.patch.size
    signature = Signature(size, np.uint8, plain.card.row_length, np.float32)
    bound = BoundSession(plain._session, signature, 64)
    rng = np.random.default_rng(0)
    for count in (64, 1, 17):  # a smaller batch leaves rows of the one before in the buffers
        given = rng.integers(0, 256, (count, 1, size, size), np.uint8)
        np.testing.assert_array_equal(bound.run(given), plain.describe_patches(given))


def test_a_full_device_gets_half_the_batch_from_then_on() -> None:
    device = FakeDevice(memory=300)
    pool = devices(device)
    given = patches(1024)
    np.testing.assert_array_equal(pool.run(given), rows_of(given))
    assert pool.batch == 256
    assert device.batches == [256] * 4
    pool.run(patches(200))
    assert device.batches[-1] == 200


def test_a_device_without_memory_is_a_typed_error() -> None:
    pool = devices(FakeDevice(memory=3))
    with pytest.raises(DeviceOutOfMemory, match="BATCH_PATCHES"):
        pool.run(patches(100))
    assert pool.batch == 16


def test_a_lost_device_is_not_used_again() -> None:
    lost, good = FakeDevice(failure=LOST), FakeDevice()
    pool = devices(good, lost)
    for _ in range(3):
        given = patches(10)
        np.testing.assert_array_equal(pool.run(given), rows_of(given))
    assert good.batches == [10, 10, 10]


def test_the_last_device_lost_is_a_typed_error_then_and_later() -> None:
    pool = devices(FakeDevice(failure=LOST))
    with pytest.raises(DeviceLost, match="unspecified launch failure"):
        pool.run(patches(1))
    with pytest.raises(DeviceLost, match="restart"):
        pool.run(patches(1))


def test_threads_that_wait_for_a_device_hear_that_it_is_lost() -> None:
    class Slow(FakeDevice):
        def run(self, patches: np.ndarray) -> np.ndarray:
            started.set()
            time.sleep(0.05)
            raise RuntimeError(LOST)

    started = threading.Event()
    pool = devices(Slow())
    errors: list[Exception] = []

    def ask() -> None:
        try:
            pool.run(patches(1))
        except DeviceLost as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    threads[0].start()
    started.wait()
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(errors) == 4


def test_another_failure_leaves_the_device_in_use() -> None:
    device = FakeDevice(failure="Non-zero status code returned while running Conv node")
    pool = devices(device)
    with pytest.raises(InferenceFailed, match="failed while running"):
        pool.run(patches(1))
    device.failure = ""
    assert len(pool.run(patches(1))) == 1


def test_two_devices_work_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=10)

    class Meets(FakeDevice):
        def run(self, patches: np.ndarray) -> np.ndarray:
            meeting.wait()  # breaks unless the other device runs now
            return super().run(patches)

    pool = devices(Meets(), Meets())
    workers = [threading.Thread(target=pool.run, args=(patches(5),)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
    assert not meeting.broken


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OUT_OF_MEMORY, DeviceOutOfMemory),
        ("CUDA failure 2: out of memory ; GPU=0", DeviceOutOfMemory),
        ("CUDNN failure 4002: CUDNN_STATUS_ALLOC_FAILED ; GPU=0", DeviceOutOfMemory),
        (LOST, DeviceLost),
        ("CUBLAS failure 14: CUBLAS_STATUS_INTERNAL_ERROR ; GPU=0", DeviceLost),
        ("anything else", InferenceFailed),
    ],
)
def test_failures_are_told_apart(text: str, expected: type[Exception]) -> None:
    assert type(classify_failure(RuntimeError(text))) is expected
