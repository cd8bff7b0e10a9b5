"""Measure matches, time and memory by working size: `python docs/research/measure_working_size.py`.

Prints one row for each image size and `max_side`. Each row runs in its own process, so that its
peak memory can be measured.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import cv2
import numpy as np

from matchserve import Matcher, Options, VerifyOptions
from matchserve.pattern import generate_pair

SIZES = ((3000, 2000), (6000, 4000))
SIDES = (1024, 1536, 2048, 3072, 0)
# A photograph of many megapixels is not sharp at the level of single pixels.
BLUR_SIGMA = 1.2


def measure(size: tuple[int, int], max_side: int) -> str:
    """Match one generated pair and return a row of the table."""
    small = (size[0] // 3, size[1] // 3)
    first, second, small_homography = generate_pair(small, seed=1)
    images = [cv2.resize(i, size, interpolation=cv2.INTER_CUBIC) for i in (first, second)]
    images = [cv2.GaussianBlur(i, (0, 0), BLUR_SIGMA) for i in images]
    scale = np.array([[3.0, 0, 1.0], [0, 3.0, 1.0], [0, 0, 1]])
    truth = scale @ small_homography @ np.linalg.inv(scale)
    matcher = Matcher(threads=1)
    start = time.process_time()
    result = matcher.match(*images, Options(verify=VerifyOptions("homography"), max_side=max_side))
    seconds = time.process_time() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    points0, points1 = result.points()
    expected = cv2.perspectiveTransform(points0[None].astype(np.float64), truth)[0]
    correct = np.linalg.norm(expected - points1, axis=1) < 1.5e-3 * max(size)
    return (
        f"| {size[0]}x{size[1]} | {max_side or 'full'} | {len(result.matches)} | "
        f"{int(correct.sum())} | {result.inlier_count} | {seconds:.1f} | {memory:.1f} |"
    )


def main() -> None:
    """Print the table, or one row if the arguments are a width, a height and a side."""
    if len(sys.argv) == 4:
        width, height, side = map(int, sys.argv[1:])
        print(measure((width, height), side), flush=True)  # noqa: T201
        return
    print("| image | max_side | matches | correct | inliers | CPU s | peak GB |")  # noqa: T201
    print("|---|---|---|---|---|---|---|", flush=True)  # noqa: T201
    for width, height in SIZES:
        for side in SIDES:
            command = [sys.executable, __file__, str(width), str(height), str(side)]
            subprocess.run(command, check=True)  # noqa: S603


if __name__ == "__main__":
    main()
