"""Run a session on batches: on devices with page-locked buffers, smaller batches if memory ends.

A session has one input, the patches, and one output, the descriptors.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from matchserve.errors import DeviceLost, DeviceOutOfMemory, InferenceFailed
from matchserve.gpu import page_locked_array

INPUT, OUTPUT = "patches", "descriptors"

# More patches at once are not faster on a CPU and cost memory in proportion.
CPU_BATCH = 64
# Computed, not measured (docs/operations/performance.md): starting the kernels of `compact` costs
# 0.16 ms, and this many patches 0.3 ms or more. It is also what one image has by default.
DEVICE_BATCH = 2048
# Two sets of buffers per device: the copies of one batch overlap the computation of the other.
BUFFERS_PER_DEVICE = 2
# A device that has no memory for this many patches has none for the model.
SMALLEST_BATCH = 16

Rows: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Which devices run a model, how many patches at once, and where TensorRT keeps its engines.

    `batch` is None for the default of the provider.
    """

    numbers: tuple[int, ...] = (0,)
    batch: int | None = None
    engine_cache: Path | None = None


def default_batch(provider: str) -> int:
    """Return how many patches the provider describes at once."""
    return CPU_BATCH if provider == "CPUExecutionProvider" else DEVICE_BATCH


@dataclass(frozen=True, slots=True)
class Signature:
    """Types and shapes of a session: patches (N, 1, S, S) in, rows (N, D) out."""

    patch_size: int
    patch_type: DTypeLike
    row_length: int
    row_type: DTypeLike


class BoundSession:
    """A session with buffers of its own, for one thread at a time.

    Patches are copied to the device from page-locked memory as they are, uint8 if the graph takes
    uint8, and rows come back the same way: the copies need no staging by the driver.
    """

    def __init__(
        self,
        session: Any,
        signature: Signature,
        batch: int,
        allocate: Callable[[tuple[int, ...], DTypeLike], NDArray[Any]] = page_locked_array,
    ) -> None:
        size = signature.patch_size
        self._session = session
        self._signature = signature
        self._patches = allocate((batch, 1, size, size), signature.patch_type)
        self._rows = allocate((batch, signature.row_length), signature.row_type)
        self._binding = session.io_binding()

    def run(self, patches: NDArray[Any]) -> Rows:
        """Describe at most `batch` patches."""
        count, types = len(patches), self._signature
        given, rows = self._patches[:count], self._rows[:count]
        given[:] = patches
        self._binding.bind_input(
            INPUT, "cpu", 0, types.patch_type, given.shape, self._patches.ctypes.data
        )
        self._binding.bind_output(
            OUTPUT, "cpu", 0, types.row_type, rows.shape, self._rows.ctypes.data
        )
        self._session.run_with_iobinding(self._binding)
        return rows.copy()


class Devices:
    """Sessions on one or several devices; each batch goes to the first that is free.

    A device that is lost is not used again; its batch goes to another one, if there is any.
    """

    def __init__(self, sessions: Sequence[BoundSession], batch: int) -> None:
        self.batch = batch
        self.size = len(sessions)
        self._changed = threading.Condition()
        self._free = list(sessions)
        self._usable = len(sessions)

    def run(self, patches: NDArray[Any]) -> Rows:
        """Describe a batch; halve it, now and for later ones, when the device has no memory.

        Raises:
            DeviceOutOfMemory: the device has no memory for the smallest batch.
            DeviceLost: no device is left.
            InferenceFailed: the model failed for another reason.
        """
        size = min(self.batch, len(patches))
        try:
            parts = [self._run(patches[i : i + size]) for i in range(0, len(patches), size)]
        except DeviceOutOfMemory:
            if size <= SMALLEST_BATCH:
                raise
            # Other threads may have halved it meanwhile: never grow it again.
            self.batch = min(self.batch, max(SMALLEST_BATCH, size // 2))
            return self.run(patches)
        return np.concatenate(parts)

    def _run(self, patches: NDArray[Any]) -> Rows:
        while True:
            session = self._take()
            try:
                rows = session.run(patches)
            except Exception as error:  # ONNX Runtime's own exception types are private
                failure = classify_failure(error)
                self._give_back(session, is_lost=isinstance(failure, DeviceLost))
                if not isinstance(failure, DeviceLost) or not self._usable:
                    raise failure from error
            else:
                self._give_back(session, is_lost=False)
                return rows

    def _take(self) -> BoundSession:
        with self._changed:
            self._changed.wait_for(lambda: self._free or not self._usable)
            if not self._usable:
                raise DeviceLost("every device was lost; restart the process")
            return self._free.pop()

    def _give_back(self, session: BoundSession, *, is_lost: bool) -> None:
        with self._changed:
            if is_lost:
                self._usable -= 1
                self._changed.notify_all()
            else:
                self._free.append(session)
                self._changed.notify()


_OUT_OF_MEMORY = re.compile(
    r"CUDA failure 2\b|out of memory|Failed to allocate memory|_STATUS_ALLOC_FAILED", re.IGNORECASE
)
_DEVICE_FAILURE = re.compile(r"(?:CUDA|CUBLAS|CUDNN|CURAND) failure \d+: ([^;]*)")


def classify_failure(error: Exception) -> InferenceFailed:
    """Turn an error of ONNX Runtime into ours: out of memory, a lost device, or another failure.

    Any error of CUDA but out of memory ends the process's use of that device.
    """
    text = str(error)
    if _OUT_OF_MEMORY.search(text):
        return DeviceOutOfMemory(
            "the device is out of memory; lower MATCHSERVE_BATCH_PATCHES or free the device"
        )
    if failure := _DEVICE_FAILURE.search(text):
        return DeviceLost(f"the device failed ({failure[1].strip()}); restart the process")
    return InferenceFailed("the model failed while running")
