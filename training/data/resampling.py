"""Resample square patches to the number of samples that a network reads."""

from __future__ import annotations

import cv2
import numpy as np

from matchserve.types import UInt8


def resample(patches: UInt8, size: int) -> UInt8:
    """Resample uint8 patches (N, S, S) to (N, size, size), over the same extent.

    A reduction averages the area that each new sample covers, so that nothing aliases; by a whole
    factor that is the mean of a block, rounded to nearest. An enlargement is bilinear: it adds
    samples, not detail.
    """
    side = patches.shape[1]
    if size == side or not len(patches):
        return np.asarray(patches[:, :size, :size])
    factor = side // size
    if factor * size == side:
        cells = patches.reshape(len(patches), size, factor, size, factor)
        return np.asarray(cells.mean(axis=(2, 4)) + 0.5, np.uint8)
    kind = cv2.INTER_AREA if size < side else cv2.INTER_LINEAR
    return np.stack([cv2.resize(patch, (size, size), interpolation=kind) for patch in patches])
