"""Find keypoints of large images in a process that can be killed.

OpenCV cannot be stopped while it builds the scale space: 50 megapixels take minutes. An image of at
most the default working size takes about a second, and is searched in the calling thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TypeAlias

import cv2
import numpy as np

from matchserve.clock import Deadline
from matchserve.decoding.pool import child_environment, read_into, write_all
from matchserve.defaults import MAX_SIDE
from matchserve.errors import ImageTooLarge
from matchserve.types import Image, Keypoints
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.masks import Mask

Detector: TypeAlias = Callable[[Deadline, Image, DetectOptions, Mask | None], Keypoints]
"""Finds the keypoints of an image before a deadline."""

MAX_PIXELS_HERE = MAX_SIDE * MAX_SIDE
"""Maximum number of working pixels that are searched in the calling thread."""

_POLL_S = 0.1
_COLUMNS = 5  # x, y, sigma, angle and score


def detect_here(
    deadline: Deadline, image: Image, options: DetectOptions, mask: Mask | None
) -> Keypoints:
    """Find keypoints in this process; the deadline is checked before each tile.

    A checkerboard of the default working size has so many keypoints that all tiles take 4 seconds.

    Raises:
        DeadlineExceeded: the keypoints were not found in time.
        ClientDeparted: the client closed the connection.
    """
    deadline.check()
    return detect(image, options, mask, deadline.check)


def detect_killable(
    deadline: Deadline, image: Image, options: DetectOptions, mask: Mask | None
) -> Keypoints:
    """Find keypoints like `matchserve.vision.keypoints.detect`, until the deadline at most.

    Raises:
        InvalidParameter: the mask does not fit the image.
        ImageTooLarge: the memory of this machine does not suffice.
        DeadlineExceeded: the keypoints were not found in time.
        ClientDeparted: the client closed the connection.
    """
    if image.grey.size <= MAX_PIXELS_HERE:
        return detect_here(deadline, image, options, mask)
    task = {"size": image.size, "threads": cv2.getNumThreads(), "options": asdict(options)}
    arrays = [image.grey]
    if mask is not None:
        mask.allows(np.empty((0, 2)), image.size)  # an error of the mask is raised here
        task["polygons"] = [polygon.tolist() for polygon in mask.shapes]
        arrays += [] if mask.image is None else [mask.image]
    shared = os.memfd_create("matchserve-keypoints", os.MFD_CLOEXEC)
    try:
        write_all(shared, b"".join(array.tobytes() for array in arrays))
        task["shapes"] = [array.shape for array in arrays]
        _run(shared, json.dumps(task), deadline)
        rows = np.empty((os.fstat(shared).st_size // (4 * _COLUMNS), _COLUMNS), np.float32)
        if rows.size:
            read_into(shared, rows.data.cast("B"))
    finally:
        os.close(shared)
    return Keypoints(rows[:, :2], *(rows[:, 2:].T))


def _run(shared: int, task: str, deadline: Deadline) -> None:
    """Let a process replace the pixels in the shared file by keypoints."""
    process = subprocess.Popen(  # noqa: S603  our own program
        [sys.executable, "-P", "-m", "matchserve.decoding.detection_child", str(shared)],
        pass_fds=(shared,),
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the service, which finishes its requests
    )
    try:
        # The task is smaller than the buffer of a pipe, so this does not wait.
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
                pipe.write(task.encode())
        while process.poll() is None:
            deadline.check()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(_POLL_S, max(0.001, deadline.remaining_s())))
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise ImageTooLarge("keypoints of this image need too much memory; use a smaller max_side")
