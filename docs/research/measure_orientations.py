"""Compare the matches of one and of several orientations of a keypoint on homography sequences.

`python docs/research/measure_orientations.py SEQUENCES [PATTERN]` prints one row for each share of
the positions, best first, whose further orientations are described as well: raw mutual nearest
neighbours of `compact`, the most similar match of each position. Means over all pairs of images.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from matchserve.models.descriptor import Descriptor
from matchserve.models.registry import load_descriptor
from matchserve.types import Bool, Float32, Float64, Image, Keypoints
from matchserve.vision import keypoints as detection
from matchserve.vision.selection import CANDIDATES, is_best_nearby, repeatability_scores
from training.evaluation.benchmarks.homography import read_sequences
from training.metrics.image_pairs import transfer_error

CHOSEN = 2048
SHARES = (0.0, 0.25, 0.5, 1.0)
# A position of OpenCV has 1.2 orientations.
_PER_POSITION = 1.2

# Of one image: rows (x, y, sigma, angle, contrast), the rank of the position of each, whether the
# row is the one orientation that is used by default, and the descriptors.
Described = tuple[Float64, NDArray[np.intp], Bool, Float32]


def describe(descriptor: Descriptor, image: Image) -> Described:
    """Describe all orientations of the positions that are used by default."""
    rule = detection.DetectOptions(duplicates=True)
    wanted = int(CANDIDATES * CHOSEN * _PER_POSITION)
    every = detection._strongest(image.grey, rule, wanted, lambda r: np.ones(len(r), np.bool_))
    one = detection._one_orientation(every)
    one = one[np.argsort(-one[:, 4], kind="stable")[: int(CANDIDATES * CHOSEN)]]
    one[:, 4] = repeatability_scores(one)
    gives_way = ~is_best_nearby(one, image.grey.shape)
    one = one[np.lexsort((-one[:, 4], gives_way))[:CHOSEN]]
    ranks = {tuple(row[:3]): rank for rank, row in enumerate(one)}
    rank = np.array([ranks.get(tuple(row[:3]), -1) for row in every])
    rows, rank = every[rank >= 0], rank[rank >= 0]
    xy, sigma, angle, score = (rows[:, :2], *rows[:, 2:].T)
    keypoints = Keypoints(*(np.float32(a) for a in (xy, sigma, angle, score)))
    return rows, rank, rows[:, 3] == one[rank, 3], descriptor.describe(image, keypoints)


def matches(one: Described, other: Described, share: float) -> tuple[Float64, Float64, float]:
    """Return the matched points and the mean number of descriptors of the two images."""
    kept = [is_main | (rank < share * CHOSEN) for _, rank, is_main, _ in (one, other)]
    (rows0, rank0, _, found0), (rows1, rank1, _, found1) = (
        tuple(part[k] for part in side) for side, k in zip((one, other), kept, strict=True)
    )
    similarity = found0 @ found1.T
    forward, backward = similarity.argmax(1), similarity.argmax(0)
    mutual = np.flatnonzero(backward[forward] == np.arange(len(forward)))
    mutual = mutual[np.argsort(-similarity[mutual, forward[mutual]])]
    used0, used1, left = set[int](), set[int](), []
    for row in mutual:
        places = int(rank0[row]), int(rank1[forward[row]])
        if places[0] not in used0 and places[1] not in used1:
            used0.add(places[0])
            used1.add(places[1])
            left.append(row)
    pairs = np.array(left)
    return rows0[pairs, :2], rows1[forward[pairs], :2], (len(rows0) + len(rows1)) / 2


def main() -> None:
    """Print the table."""
    cv2.setNumThreads(1)
    sequences = read_sequences([Path(sys.argv[1])], *sys.argv[2:3])
    descriptor = load_descriptor("compact")
    described = {
        name: describe(descriptor, load()) for name, load in sequences.images.images.items()
    }
    print("| share | descriptors | matches | correct | MMA@1px % | MMA@3px % |")  # noqa: T201
    print("|---|---|---|---|---|---|")  # noqa: T201
    for share in SHARES:
        rows = []
        for pair in sequences.images.pairs:
            xy0, xy1, count = matches(described[pair[0]], described[pair[1]], share)
            error = transfer_error(sequences.homographies[pair], xy0, xy1)
            hit = [float(np.mean(error <= px)) for px in (1, 3)]
            rows.append((count, len(error), (error <= 3).sum(), 100 * hit[0], 100 * hit[1]))
        count, found, correct, one, three = np.mean(rows, axis=0)
        print(  # noqa: T201
            f"| {share:g} | {count:.0f} | {found:.0f} | {correct:.0f} | {one:.1f} | {three:.1f} |"
        )


if __name__ == "__main__":
    main()
