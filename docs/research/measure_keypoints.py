"""Compare ways to choose keypoints on homography sequences.

`python docs/research/measure_keypoints.py SEQUENCES [PATTERN]` prints one row for each way:
candidates per chosen keypoint, exponent of sigma in the score, distance within which a keypoint
gives way to a better one. Means over all pairs of images: repeatable keypoints (mutually nearest
by the homography, within 3 pixels), their share of the keypoints in the common area, their mean
distance, and CPU time to detect and choose for one image.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import cv2
import numpy as np
from scipy.spatial import cKDTree

from matchserve.types import Float64, Image
from matchserve.vision import keypoints as detection
from matchserve.vision.selection import is_best_nearby, repeatability_scores
from training.evaluation.benchmarks.homography import read_sequences
from training.metrics.image_pairs import apply_homography

CHOSEN = 2048
RADIUS_PX = 3.0
# (candidates per keypoint, exponent of sigma, spread in pixels); the first is by contrast.
WAYS = (
    (1.0, 0.0, 0), (1.0, 1.0, 2), (1.25, 1.0, 0), (1.25, 1.0, 2), (1.25, 0.5, 3), (2.0, 1.0, 3),
)  # fmt: skip


def choose(image: Image, way: tuple[float, float, int]) -> Float64:
    """Return the chosen positions (N, 2)."""
    factor, exponent, spread = way
    grey = image.grey
    rows = detection._strongest(
        grey, detection.DetectOptions(), int(factor * CHOSEN), lambda r: np.ones(len(r), np.bool_)
    )
    rows[:, 4] = repeatability_scores(rows, exponent)
    nearby = (rows[:, :2], rows[:, 4], grey.shape, spread)
    gives_way = ~is_best_nearby(*nearby) if spread else np.zeros(len(rows))
    return np.asarray(rows[np.lexsort((-rows[:, 4], gives_way))[:CHOSEN], :2])


def found_again(homography: Float64, xy0: Float64, xy1: Float64) -> Float64:
    """Return the distances of mutually nearest keypoints, up to `RADIUS_PX`."""
    moved = apply_homography(homography, xy0)
    distance, forward = cKDTree(xy1).query(moved)
    _, backward = cKDTree(moved).query(xy1)
    is_mutual = backward[forward] == np.arange(len(moved))
    return np.asarray(distance[is_mutual & (distance <= RADIUS_PX)])


def main() -> None:
    """Print the table."""
    cv2.setNumThreads(1)
    sequences = read_sequences([Path(sys.argv[1])], *sys.argv[2:3])
    images = {name: load() for name, load in sequences.images.images.items()}
    print("| candidates | exponent | spread px | repeatable | share % | distance px | CPU ms |")  # noqa: T201
    print("|---|---|---|---|---|---|---|", flush=True)  # noqa: T201
    for way in WAYS:
        start = time.process_time()
        found = {name: choose(image, way) for name, image in images.items()}
        milliseconds = 1e3 * (time.process_time() - start) / len(images)
        rows = []
        for (one, other), homography in sequences.homographies.items():
            distance = found_again(homography, found[one], found[other])
            common = min(
                _inside(homography, found[one], images[other]),
                _inside(np.asarray(np.linalg.inv(homography)), found[other], images[one]),
            )
            rows.append((len(distance), len(distance) / max(common, 1), distance.mean()))
        count, share, error = np.mean([row for row in rows if row[0]], axis=0)
        print(  # noqa: T201
            f"| {way[0]:g} | {way[1]:g} | {way[2]} | {count:.0f} | {100 * share:.1f} | {error:.3f} "
            f"| {milliseconds:.0f} |",
            flush=True,
        )


def _inside(homography: Float64, xy: Float64, image: Image) -> int:
    moved = apply_homography(homography, xy)
    return int(((moved >= 0) & (moved <= np.array(image.size) - 1)).all(axis=1).sum())


if __name__ == "__main__":
    main()
