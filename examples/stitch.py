"""Join two overlapping photographs of a flat scene, or of a camera that only rotates.

python examples/stitch.py a.jpg b.jpg -o panorama.jpg
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from matchserve import Matcher, Options, VerifyOptions

MIN_INLIERS = 15


def main() -> int:
    """Match, estimate the homography and write both images in the frame of the first."""
    parser = argparse.ArgumentParser(description="Join two overlapping photographs.")
    parser.add_argument("image0", type=Path)
    parser.add_argument("image1", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    names = parser.parse_args()

    options = Options(verify=VerifyOptions(kind="homography"))
    result = Matcher().match(names.image0, names.image1, options)
    inliers = int(result.verification.inliers.sum())
    if inliers < MIN_INLIERS or result.verification.matrix is None:
        sys.stderr.write(f"only {inliers} inliers: these images do not overlap enough\n")
        return 1

    from_second = np.linalg.inv(result.verification.matrix)
    joined = join(pixels(names.image0), pixels(names.image1), from_second)
    Image.fromarray(joined).save(names.output)
    sys.stdout.write(f"{inliers} inliers; wrote {names.output}\n")
    return 0


def pixels(path: Path) -> NDArray[np.uint8]:
    """Read an image upright, as the matcher does."""
    return np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("RGB"), np.uint8)


def join(
    first: NDArray[np.uint8], second: NDArray[np.uint8], from_second: NDArray[np.float64]
) -> NDArray[np.uint8]:
    """Draw `second` through `from_second` behind `first`, on a canvas that holds both."""
    corners = [corners_of(first), cv2.perspectiveTransform(corners_of(second), from_second)]
    low = np.floor(np.concatenate(corners).min(axis=(0, 1)))
    high = np.ceil(np.concatenate(corners).max(axis=(0, 1)))
    width, height = (high - low + 1).astype(int)
    shift = np.array([[1, 0, -low[0]], [0, 1, -low[1]], [0, 0, 1]])
    canvas = cv2.warpPerspective(second, shift @ from_second, (int(width), int(height)))
    x, y = (-low).astype(int)
    canvas[y : y + first.shape[0], x : x + first.shape[1]] = first
    return np.asarray(canvas, np.uint8)


def corners_of(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the centres of the four corner pixels, as OpenCV wants them."""
    height, width = image.shape[:2]
    right, bottom = width - 1, height - 1
    return np.array([[[0, 0], [right, 0], [right, bottom], [0, bottom]]], np.float64)


if __name__ == "__main__":
    sys.exit(main())
