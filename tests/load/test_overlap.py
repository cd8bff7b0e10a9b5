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
OPTIONS = Options(detect=DetectOptions(max_keypoints=512))


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


@pytest.mark.slow
@pytest.mark.usefixtures("one_opencv_thread")
def test_detection_and_description_overlap(capsys: pytest.CaptureFixture[str]) -> None:
    given = images()
    card = FakeDeviceDescriptor(batch=1).card
    # As many batches of 5 ms as the CPU needs for an image: neither side waits for the other.
    batches = max(1, round(time_on_cpu(given, card.patch) / BATCH_S))
    batch = int(np.ceil(OPTIONS.detect.max_keypoints / batches))
    device = SleepingSession(BATCH_S)
    matcher = Matcher(FakeDeviceDescriptor(device, batch=batch))
    call = Call(threads=one_thread)

    def serial() -> list[Any]:
        return [matcher.features(image, OPTIONS, call) for image in given]

    def overlapped() -> list[Any]:
        return list(matcher.describe_images(given, OPTIONS))

    for one, other in zip(serial(), overlapped(), strict=True):
        np.testing.assert_array_equal(one.descriptors, other.descriptors)
    ratios = [seconds(serial) / seconds(overlapped) for _ in range(ROUNDS)]
    with capsys.disabled():
        print(  # noqa: T201  figures to be read
            f"\noverlap: {max(ratios):.2f} times the serial throughput, best of {ROUNDS} "
            f"({', '.join(f'{ratio:.2f}' for ratio in ratios)}); {batches} batches an image"
        )
    assert max(ratios) >= WANTED
