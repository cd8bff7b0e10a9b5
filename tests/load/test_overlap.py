"""The CPU finds keypoints while a device describes: both work at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest

from matchserve.clock import Call, one_thread
from matchserve.matcher import Matcher, Options
from matchserve.pattern import generate_pair
from matchserve.types import Image
from matchserve.vision.decode import from_array
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.patches import crop
from tests.fake_device import FakeDeviceDescriptor, SleepingSession

IMAGES, ROUNDS = 24, 5
BATCH_S = 0.005
WANTED = 1.7
# As many patches as keypoints, so that the batches of an image can be counted.
OPTIONS = Options(detect=DetectOptions(max_keypoints=512, further_orientations=0.0))


@pytest.fixture
def one_opencv_thread() -> Any:
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    yield
    cv2.setNumThreads(before)


def images() -> list[Image]:
    return [
        from_array(picture)
        for seed in range(IMAGES // 2)
        for picture in generate_pair((480, 360), seed=seed)[:2]
    ]


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def time_on_cpu(given: list[Image], spec: Any) -> float:
    def find() -> None:
        for image in given[:8]:
            crop(image, detect(image, OPTIONS.detect), spec)

    return min(seconds(find) for _ in range(3)) / 8


def measure(given: list[Image]) -> tuple[float, int]:
    """Return how many times faster the overlapped order is, and the batches of an image."""
    # As many batches of 5 ms as the CPU needs for an image now: neither side waits for the other.
    card = FakeDeviceDescriptor(batch=1).card
    batches = max(1, round(time_on_cpu(given, card.patch) / BATCH_S))
    batch = int(np.ceil(OPTIONS.detect.max_keypoints / batches))
    matcher = Matcher(FakeDeviceDescriptor(SleepingSession(BATCH_S), batch=batch))
    call = Call(threads=one_thread)
    start = time.perf_counter()
    serial = [matcher.features(image, OPTIONS, call) for image in given]
    middle = time.perf_counter()
    overlapped = list(matcher.describe_images(given, OPTIONS))
    end = time.perf_counter()
    for one, other in zip(serial, overlapped, strict=True):
        np.testing.assert_array_equal(one.descriptors, other.descriptors)
    return (middle - start) / (end - middle), batches


@pytest.mark.slow
@pytest.mark.usefixtures("one_opencv_thread")
def test_detection_and_description_overlap(capsys: pytest.CaptureFixture[str]) -> None:
    given = images()
    measure(given)  # fills caches
    rounds = [measure(given) for _ in range(ROUNDS)]
    with capsys.disabled():
        print(  # noqa: T201  figures to be read
            f"\noverlap: {max(rounds)[0]:.2f} times the serial throughput, best of {ROUNDS} ("
            + ", ".join(f"{ratio:.2f} at {batches} batches an image" for ratio, batches in rounds)
            + ")"
        )
    assert max(rounds)[0] >= WANTED
