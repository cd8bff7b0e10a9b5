"""The program of a detector process: find the keypoints of one image, then end."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

import cv2
import numpy as np

from matchserve.decoding.child import end_with_parent
from matchserve.decoding.pool import read_into, write_all
from matchserve.threads import off_main_thread
from matchserve.types import Image
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.masks import Mask

OUT_OF_MEMORY = 3
"""Exit code of a process whose memory does not suffice."""


def main() -> None:
    """Replace the pixels in the file whose descriptor is the first argument by keypoints.

    Standard input has the task. The file has the image, and then that of the mask, if any.
    """
    end_with_parent()
    shared, task = int(sys.argv[1]), json.load(sys.stdin)
    cv2.setNumThreads(task["threads"])
    image, mask = _inputs(shared, task)
    try:
        found = off_main_thread(detect, image, DetectOptions(**task["options"]), mask)
    except (MemoryError, cv2.error):
        sys.exit(OUT_OF_MEMORY)
    rows = np.column_stack([found.xy, found.sigma, found.angle, found.score])
    os.ftruncate(shared, 0)
    if rows.size:
        write_all(shared, np.ascontiguousarray(rows, np.float32).data.cast("B"))


def _inputs(shared: int, task: dict[str, Any]) -> tuple[Image, Mask | None]:
    content = np.empty(os.fstat(shared).st_size, np.uint8)
    read_into(shared, content.data)
    sizes = [math.prod(shape) for shape in task["shapes"]]
    parts = np.split(content, np.cumsum(sizes)[:-1])
    arrays = [part.reshape(shape) for part, shape in zip(parts, task["shapes"], strict=True)]
    width, height = task["size"]
    image = Image(arrays[0], (width, height))
    if "polygons" not in task:
        return image, None
    polygons = tuple(np.array(polygon, np.float64) for polygon in task["polygons"])
    return image, Mask(polygons, arrays[1] if len(arrays) > 1 else None)


if __name__ == "__main__":
    main()
