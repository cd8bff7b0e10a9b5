"""Compare corners of OpenCV with our DoG, both with one of our descriptors on their keypoints.

`python docs/research/measure_detectors.py homography SEQUENCES [PATTERN]` prints one row for each
detector: repeatable keypoints and their distance (as `measure_keypoints.py`), correct raw mutual
nearest neighbours, area under the curve of the homography error, and processor time to detect.
`python docs/research/measure_detectors.py pose SCENES` prints the relative pose. The scale of a
corner is a multiple of ORB's diameter of its patch.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from measure_keypoints import found_again

from matchserve.types import Float64, Image, Keypoints
from matchserve.vision.given_points import GivenPoints, place
from matchserve.vision.keypoints import DetectOptions
from matchserve.vision.keypoints import detect as detect_dog
from training.evaluation import predictions, protocol
from training.evaluation.benchmarks import homography, pose
from training.metrics.image_pairs import apply_homography

MODEL = "compact"
OPENCV: Any = cv2  # its stubs do not have the detector
SHOWN = (
    "mma@1px", "mma@3px", "correct", "homography_auc@3px", "homography_auc@5px", "repeatable",
    "share %", "distance px", "CPU ms", "pose_auc@5", "pose_auc@10", "pose_auc@20",
)  # fmt: skip
Detect = Callable[[Image, DetectOptions], Keypoints]


def detect_corners(sigma_per_size: float, image: Image, options: DetectOptions) -> Keypoints:
    """Return the strongest corners of ORB, at the dominant direction of the gradient."""
    corners = OPENCV.ORB_create(nfeatures=options.max_keypoints, fastThreshold=5)
    found = sorted(corners.detect(image.grey, None), key=lambda point: -point.response)
    found = found[: options.max_keypoints]
    xy = np.array([point.pt for point in found], np.float32).reshape(-1, 2)
    xy = np.clip(xy, 0, np.array(image.size) - 1).astype(np.float32)
    sigma = np.array([point.size * sigma_per_size for point in found], np.float32)
    return place(GivenPoints(xy, sigma), image, is_upright=False)


# OpenCV 5 has no other detector with a scale: AKAZE (Hessian) and BRISK are gone, and
# GFTTDetector finds corners at one scale only.
DETECTORS: dict[str, Detect] = {
    "dog": detect_dog,
    **{f"corners {size:.2f}": partial(detect_corners, size) for size in (0.04, 0.06, 0.09)},
}


class Timed:
    """A detector that adds up its processor time."""

    def __init__(self, detect: Detect) -> None:
        self.detect, self.seconds, self.images = detect, 0.0, 0

    def __call__(self, image: Image, options: DetectOptions) -> Keypoints:
        """Detect keypoints."""
        start = time.thread_time()
        try:
            return self.detect(image, options)
        finally:
            self.seconds += time.thread_time() - start
            self.images += 1


def measure(detect: Timed, benchmark: str, data: list[Path], pattern: str) -> dict[str, float]:
    """Return the figures of a benchmark with the keypoints of one detector."""
    vars(predictions)["detect"] = detect
    with tempfile.TemporaryDirectory() as cache:
        options = protocol.Options(
            pattern=pattern, threads=1, cache=Path(cache), selection="repeatable"
        )
        models = [m for m in protocol.load_models([MODEL], options) if m.name == MODEL]
        run = homography.run if benchmark == "homography" else pose.run
        figures = dict(run(models, data, options).models[MODEL].figures)
        if benchmark == "homography":
            figures |= repeatability(homography.read_sequences(data, pattern), options)
    return figures | {"CPU ms": 1e3 * detect.seconds / max(detect.images, 1)}


def repeatability(sequences: Any, options: protocol.Options) -> dict[str, float]:
    """Return repeatable keypoints, their share in the common area and their mean distance."""
    rows = predictions.find_keypoints(sequences.images, options)
    xy = {name: np.asarray(found[1:, :2], np.float64) for name, found in rows.items()}
    sizes = {name: found[0, :2] for name, found in rows.items()}
    results = []
    for (one, other), matrix in sequences.homographies.items():
        distance = found_again(matrix, xy[one], xy[other])
        common = min(
            _inside(matrix, xy[one], sizes[other]),
            _inside(np.linalg.inv(matrix), xy[other], sizes[one]),
        )
        if len(distance):
            results.append((len(distance), 100 * len(distance) / common, distance.mean()))
    names = ("repeatable", "share %", "distance px")
    return dict(zip(names, np.mean(results, axis=0).tolist(), strict=True))


def _inside(matrix: Float64, xy: Float64, size: Float64) -> int:
    moved = apply_homography(np.asarray(matrix), xy)
    return int(((moved >= 0) & (moved <= size - 1)).all(axis=1).sum())


def main() -> None:
    """Print the table."""
    cv2.setNumThreads(1)
    benchmark, data, *rest = sys.argv[1:]
    pattern = rest[0] if rest else "*"
    is_first = True
    for name, detect in DETECTORS.items():
        figures = measure(Timed(detect), benchmark, [Path(data)], pattern)
        shown = {key: value for key, value in figures.items() if key in SHOWN}
        if is_first:
            print("| detector | " + " | ".join(shown) + " |\n" + "|---" * (len(shown) + 1) + "|")  # noqa: T201
            is_first = False
        row = " | ".join(
            f"{value:.3f}" if value < 10 else f"{value:.1f}" for value in shown.values()
        )
        print(f"| {name} | {row} |", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
