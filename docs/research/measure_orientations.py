"""Compare the matches of one and of several orientations of a keypoint on homography sequences.

`python docs/research/measure_orientations.py SEQUENCES [PATTERN]` prints one row for each share of
the keypoints, best first, whose further orientations are described as well: raw mutual nearest
neighbours of `compact`, the most similar match of each position, means over all pairs of images;
and the processor time of the default pipeline without synthetic views, on the first pair of each
sequence, in multiples of that of one orientation.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from matchserve.matcher import DEFAULT_OPTIONS, Matcher
from matchserve.pipeline.judging import matched_keypoints, one_for_each_position
from matchserve.types import Features, Float32, Image
from matchserve.vision.keypoints import DetectOptions
from matchserve.vision.matching import match
from training.evaluation.benchmarks.homography import read_sequences
from training.metrics.image_pairs import transfer_error

SHARES = (0.0, 0.25, 0.5, 1.0)
_ROUNDS = 4


def matched_points(one: Features, other: Features) -> tuple[Float32, Float32]:
    """Return the points of mutual nearest neighbours, one match for each position."""
    found = match(one, other)
    keypoints = matched_keypoints((one, other), found)
    kept = one_for_each_position(keypoints, found.score, np.arange(len(found)))
    return keypoints[0].xy[kept], keypoints[1].xy[kept]


def relative_time(matcher: Matcher, pair: tuple[Image, Image]) -> list[float]:
    """Return the least processor time of a pair for each share, relative to the first share."""
    best = dict.fromkeys(SHARES, np.inf)
    for _ in range(_ROUNDS):
        for share in SHARES:
            options = replace(DEFAULT_OPTIONS, detect=with_share(share), views=1)
            start = time.process_time()
            matcher.match(*pair, options)
            best[share] = min(best[share], time.process_time() - start)
    return [best[share] / best[SHARES[0]] for share in SHARES]


def with_share(share: float) -> DetectOptions:
    """Return the default options of detection with a share of further orientations."""
    return DetectOptions(further_orientations=share)


def main() -> None:
    """Print the table."""
    cv2.setNumThreads(1)
    sequences = read_sequences([Path(sys.argv[1])], *sys.argv[2:3])
    images = {name: load() for name, load in sequences.images.images.items()}
    matcher = Matcher("compact", threads=1)
    first = {name.split("/")[0]: (name, other) for name, other in reversed(sequences.images.pairs)}
    times = np.mean(
        [relative_time(matcher, (images[a], images[b])) for a, b in first.values()], axis=0
    )
    print("| share | descriptors | matches | correct | MMA@1px % | MMA@3px % | time |")  # noqa: T201
    print("|---|---|---|---|---|---|---|")  # noqa: T201
    for share, duration in zip(SHARES, times, strict=True):
        options = replace(DEFAULT_OPTIONS, detect=with_share(share), max_side=0)
        features = {name: matcher.features(image, options) for name, image in images.items()}
        rows = []
        for pair in sequences.images.pairs:
            error = transfer_error(
                sequences.homographies[pair], *matched_points(*(features[name] for name in pair))
            )
            hit = [float(np.mean(error <= px)) for px in (1, 3)]
            rows.append((len(error), (error <= 3).sum(), 100 * hit[0], 100 * hit[1]))
        found, correct, one, three = np.mean(rows, axis=0)
        count = np.mean([len(side) for side in features.values()])
        print(  # noqa: T201
            f"| {share:g} | {count:.0f} | {found:.0f} | {correct:.0f} | {one:.1f} | {three:.1f} | "
            f"{duration:.3f} |"
        )


if __name__ == "__main__":
    main()
