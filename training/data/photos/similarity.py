"""Coarse similarity of patches, to reject detections that are correct by geometry only by chance.

Geometry says where a keypoint should be, not that the keypoint found there shows the same thing:
in a saturated or occluded area a detection is noise, and nothing can be learned from it.
"""

from __future__ import annotations

import numpy as np

from matchserve.types import Float32, UInt8

COARSE = 8
# 70 % of unrelated pairs and 3 % of true pairs are less similar than this.
MIN_SIMILARITY = 0.3


def similarity(left: UInt8, right: UInt8) -> Float32:
    """Return the correlation (N,), -1 to 1, of patches (N, S, S) averaged down to 8 x 8.

    So coarse a grid tolerates small errors of position, scale and angle. Brightness and contrast
    have no influence. The correlation with a flat patch is 0.
    """
    one, other = _coarse(left), _coarse(right)
    length = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.asarray(np.einsum("nk,nk->n", one, other) / np.maximum(length, 1e-6), np.float32)


def _coarse(patches: UInt8) -> Float32:
    """Return the cell means (N, 64), centred and weighted by a Gaussian window."""
    side = patches.shape[1] - patches.shape[1] % COARSE
    cells = patches[:, :side, :side].reshape(-1, COARSE, side // COARSE, COARSE, side // COARSE)
    rows = cells.mean(axis=(2, 4), dtype=np.float32).reshape(-1, COARSE * COARSE)
    at = np.arange(COARSE) - (COARSE - 1) / 2
    window = np.exp(-(at[:, None] ** 2 + at[None, :] ** 2) / (2 * (COARSE / 3) ** 2)).ravel()
    window = (window / window.sum()).astype(np.float32)
    centred = rows - (rows @ window)[:, None]
    return np.asarray(centred * np.sqrt(window), np.float32)
