"""Generate a textured image pair with known geometry, for benchmarks and self-tests."""

from __future__ import annotations

import cv2
import numpy as np

from matchserve.types import Float64, UInt8


def generate(size: tuple[int, int], *, seed: int = 0) -> UInt8:
    """Generate a grey image of `size` (width, height) with texture at many scales."""
    rng = np.random.default_rng(seed)
    width, height = size
    canvas = _clouds(size, rng)
    for _ in range(width * height // 4000):
        centre = (int(rng.integers(width)), int(rng.integers(height)))
        axes = tuple(int(a) for a in rng.lognormal(2.0, 0.8, 2) + 2)
        shade = float(rng.uniform(10, 245))
        angle = float(rng.uniform(0, 180))
        if rng.random() < 0.5:
            cv2.ellipse(canvas, centre, axes, angle, 0, 360, shade, -1, cv2.LINE_AA)
        else:
            box = cv2.boxPoints((centre, axes, angle)).astype(np.int32)
            cv2.fillPoly(canvas, [box], shade, cv2.LINE_AA)
    noisy = cv2.GaussianBlur(canvas, (0, 0), 0.8) + rng.normal(0, 2, canvas.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def generate_pair(size: tuple[int, int], *, seed: int = 0) -> tuple[UInt8, UInt8, Float64]:
    """Generate an image, a rotated, scaled and tilted view of it, and their homography."""
    first = generate(size, seed=seed)
    width, height = size
    turn = cv2.getRotationMatrix2D((width / 2, height / 2), 20.0, 0.85)
    homography = np.vstack([turn, [2e-4 * 640 / width, -1e-4 * 480 / height, 1.0]])
    second = cv2.warpPerspective(
        first, homography, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101
    )
    return first, np.asarray(second, np.uint8), homography


def _clouds(size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Return smooth noise at several scales around mid-grey."""
    canvas = np.full((size[1], size[0]), 128.0, np.float32)
    for cell in (8, 24, 96):
        small = rng.normal(0, 9, (size[1] // cell + 2, size[0] // cell + 2)).astype(np.float32)
        canvas += np.asarray(cv2.resize(small, size, interpolation=cv2.INTER_CUBIC))
    return canvas
