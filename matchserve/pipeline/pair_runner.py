"""Run the same work for both images of a pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass
from typing import TypeVar

from matchserve.clock import Call
from matchserve.hardware import memory_limit_bytes
from matchserve.pipeline.inputs import ImageInput
from matchserve.types import Image
from matchserve.vision.tiles import detection_bytes

T = TypeVar("T")
S = TypeVar("S")


@dataclass(slots=True)
class Source:
    """An image, decoded when it is needed, and its bytes if its features may be cached."""

    given: ImageInput
    image: Image | None = None
    data: bytes | bytearray | memoryview = b""


@dataclass(frozen=True, slots=True)
class PairRunner:
    """Runs the same work for both images, at the same time if the call may use two threads."""

    executor: Executor
    call: Call

    def both(
        self, work: Callable[[S], T], items: Sequence[S], *, is_parallel: bool = True
    ) -> tuple[T, T]:
        """Return the results of both items."""
        first, second = items
        if not is_parallel or self.call.threads() < 2:
            return work(first), work(second)
        future = self.executor.submit(work, second)
        try:
            result = work(first)
        finally:
            # Also after an error in the first image: the caller owns its memory until both end.
            wait([future])
        return result, future.result()


def fit_in_memory(images: Sequence[Image]) -> bool:
    """Return whether keypoints can be found in all images at the same time."""
    needed = sum(detection_bytes(image.grey.size) for image in images)
    return needed < memory_limit_bytes() / 2
