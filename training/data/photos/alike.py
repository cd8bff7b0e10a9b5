"""Do two patches show the same thing at all? A coarse check against chance detections.

Geometry says where a keypoint should be, not that one found there is the same: in a saturated
or hidden place a detection is noise, and nothing can be learned from it.
"""

from __future__ import annotations

import numpy as np

from matchserve.types import Float32, UInt8

COARSE = 8
# Of unrelated patches seven in ten are less alike, of true ones three in a hundred.
MIN_LIKENESS = 0.3


def likeness(left: UInt8, right: UInt8) -> Float32:
    """Correlation (N,), -1 to 1, of patches (N, S, S) averaged down to 8 x 8.

    Coarse enough to bear what position, scale and angle tolerances do; blind to brightness and
    contrast. A flat patch is like nothing.
    """
    one, other = _coarse(left), _coarse(right)
    length = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.asarray(np.einsum("nk,nk->n", one, other) / np.maximum(length, 1e-6), np.float32)


def _coarse(patches: UInt8) -> Float32:
    """Cell means under a Gaussian window, of mean zero: (N, 64)."""
    side = patches.shape[1] - patches.shape[1] % COARSE
    cells = patches[:, :side, :side].reshape(-1, COARSE, side // COARSE, COARSE, side // COARSE)
    rows = cells.mean(axis=(2, 4), dtype=np.float32).reshape(-1, COARSE * COARSE)
    at = np.arange(COARSE) - (COARSE - 1) / 2
    window = np.exp(-(at[:, None] ** 2 + at[None, :] ** 2) / (2 * (COARSE / 3) ** 2)).ravel()
    window = (window / window.sum()).astype(np.float32)
    centred = rows - (rows @ window)[:, None]
    return np.asarray(centred * np.sqrt(window), np.float32)
