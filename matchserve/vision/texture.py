"""Which keypoints lie in flat regions, where descriptors are noise."""

from __future__ import annotations

import cv2
import numpy as np

from matchserve.types import Bool, Float64, UInt8

# A keypoint is flat if the standard deviation around it, in grey levels, is below this; it is
# measured in a square of this side, in sigmas (the support of SIFT).
FLAT_STD = 2.0
FLAT_SIDE_SIGMA = 12.0


def is_textured(grey: UInt8, xy: Float64, sigma: Float64) -> Bool:
    """Return whether the standard deviation around each keypoint exceeds `FLAT_STD`."""
    if len(xy) == 0:
        return np.zeros(0, np.bool_)
    total, squares = cv2.integral2(grey, sdepth=cv2.CV_64F, sqdepth=cv2.CV_64F)
    half = 0.5 * FLAT_SIDE_SIGMA * sigma
    bounds = np.array([grey.shape[1], grey.shape[0]])[:, None]
    low = np.clip(np.floor(xy.T - half), 0, bounds - 1).astype(np.intp)
    high = np.clip(np.ceil(xy.T + half) + 1, low + 1, bounds).astype(np.intp)
    count = np.prod(high - low, axis=0)

    def mean(table: Float64) -> Float64:
        (x0, y0), (x1, y1) = low, high
        corners = table[y1, x1] - table[y0, x1] - table[y1, x0] + table[y0, x0]
        return np.asarray(corners / count)

    average = mean(np.asarray(total))
    variance = mean(np.asarray(squares)) - average**2
    return np.asarray(variance > FLAT_STD**2)
