from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from matchserve.clock import ClientDeparted, Deadline
from matchserve.decoding import detection
from matchserve.errors import DeadlineExceeded, ImageTooLarge, InvalidParameter
from matchserve.types import Image, UInt8
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.masks import Mask


@pytest.fixture
def reduced(grey_photograph: UInt8) -> Image:
    """An image that was reduced to half its size before."""
    rows, columns = grey_photograph.shape
    return Image(grey_photograph, (2 * columns, 2 * rows))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every image large enough for a process of its own."""
    monkeypatch.setattr(detection, "MAX_PIXELS_HERE", 0)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def detectors() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [c for c in children if "matchserve.decoding.detection_child" in c.cmdline()]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("duplicates", [False, True])
def test_keypoints_are_those_of_this_process(reduced: Image, *, duplicates: bool) -> None:
    options = DetectOptions(max_keypoints=300, duplicates=duplicates)
    there = detection.detect_killable(Deadline(120), reduced, options, None)
    here = detect(reduced, options)
    for name in ("xy", "sigma", "angle", "score"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name))
    assert len(here) == 300 if duplicates else 300 < len(here) <= 450


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("has_image", [False, True])
def test_masks_are_applied(reduced: Image, *, has_image: bool) -> None:
    left = np.zeros((64, 64), np.uint8)
    left[:, :32] = 255
    polygon = np.array([[100.5, 100], [700, 100.25], [700, 700], [100, 700]])
    mask = Mask((polygon,), left if has_image else None)
    options = DetectOptions(max_keypoints=200)
    there = detection.detect_killable(Deadline(120), reduced, options, mask)
    np.testing.assert_array_equal(there.xy, detect(reduced, options, mask).xy)
    assert len(there) > 50
    assert not has_image or there.xy[:, 0].max() < 512


@pytest.mark.usefixtures("in_process")
def test_an_error_of_the_mask_is_raised(reduced: Image) -> None:
    mask = Mask(image=np.zeros((64, 200), np.uint8))
    with pytest.raises(InvalidParameter):
        detection.detect_killable(Deadline(120), reduced, DetectOptions(), mask)


@pytest.mark.usefixtures("in_process")
def test_an_image_without_keypoints_has_none() -> None:
    flat = Image(np.full((64, 64), 7, np.uint8), (64, 64))
    assert len(detection.detect_killable(Deadline(120), flat, DetectOptions(), None)) == 0


@pytest.mark.usefixtures("in_process")
def test_a_detector_is_killed_at_the_deadline(reduced: Image) -> None:
    files = open_files()
    with pytest.raises(DeadlineExceeded):
        detection.detect_killable(Deadline(0.05), reduced, DetectOptions(), None)
    assert not detectors()
    assert open_files() == files


@pytest.mark.usefixtures("in_process")
def test_a_detector_is_killed_when_the_client_leaves(reduced: Image) -> None:
    deadline = Deadline(300)
    threading.Timer(0.05, deadline.depart).start()
    with pytest.raises(ClientDeparted):
        detection.detect_killable(deadline, reduced, DetectOptions(), None)
    assert not detectors()


@pytest.mark.usefixtures("in_process")
def test_a_detector_that_dies_is_reported(reduced: Image) -> None:
    """The kernel kills the largest process when memory ends."""

    def kill() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and not (found := detectors()):
            time.sleep(0.001)
        found[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(ImageTooLarge, match="max_side"):
        detection.detect_killable(Deadline(120), reduced, DetectOptions(), None)
    killer.join()


def test_an_image_of_the_working_size_needs_no_process(
    reduced: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert len(detection.detect_killable(Deadline(120), reduced, DetectOptions(), None)) > 0
    with pytest.raises(DeadlineExceeded):
        detection.detect_killable(Deadline(0), reduced, DetectOptions(), None)


def test_the_deadline_is_checked_before_each_tile() -> None:
    """A checkerboard takes seconds in all: its slot must not be held for so long."""
    board = np.kron(np.indices((90, 120)).sum(0) % 2, np.ones((12, 12))) * 255
    image = Image(board.astype(np.uint8), (1440, 1080))
    calls: list[int] = []

    class Passing(Deadline):
        def check(self) -> None:
            calls.append(len(calls))
            if len(calls) == 3:
                raise DeadlineExceeded("over")

    with pytest.raises(DeadlineExceeded):
        detection.detect_here(Passing(60), image, DetectOptions(), None)
    assert len(calls) == 3
    detection.detect_here(Passing(60), image, DetectOptions(), None)
    assert len(calls) > 3 + 4
