"""How far neighbouring matches agree: each predicts where its neighbours go.

A match carries a local map from image 0 to image 1: the similarity of its two keypoints, or the
affine map of the refinement. With it, match i predicts where the point of a neighbour j should be
in image 1. Right matches on one surface predict each other; wrong ones do so only by chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from matchserve.types import Float32, Keypoints
from matchserve.vision.products import weighted_sums

Index: TypeAlias = NDArray[np.intp]

# Neighbours asked in each image, and the errors, relative to their distance, that count as one.
NEIGHBOURS = 16
TOLERANCES = (0.1, 0.25, 0.6)
_NOISE_PX = 2.0
# FLANN's number of the exact tree; OpenCV has no name for it in Python.
_KD_TREE_SINGLE = 4
# Bins of the histogram of rotation and log2 scale over all matches of the pair.
_TURN_BINS, _SCALE_BINS, _SCALE_RANGE = 36, 24, 3.0


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    """Neighbours of M matches in both images, (M, 2K) indices, and agreement (T, M, 2K) in 0..1."""

    index: Index
    agreement: Float32

    def sums(self, weights: Float32) -> Float32:
        """Weighted agreement in each image, (M, 2T)."""
        matches, count = len(self.index), self.index.shape[1] // 2
        if count == 0:
            return np.zeros((matches, 2 * len(TOLERANCES)), np.float32)
        share = (self.agreement * weights[self.index]).reshape(-1, count)
        halves = weighted_sums(share, np.ones(count, np.float32))
        return np.ascontiguousarray(
            halves.reshape(len(TOLERANCES), matches, 2).transpose(1, 2, 0)
        ).reshape(matches, 2 * len(TOLERANCES))


def neighbourhood(
    points: tuple[Float32, Float32], maps: Float32, index: Index | None = None
) -> Neighbourhood:
    """Measure how far the maps of neighbouring matches agree; points are (M, 2) in each image.

    `index` are the neighbours if they are known, as `nearest_matches` returns them.
    """
    index = nearest_matches(points) if index is None else index
    # One array for each coordinate: (M, 2K, 2) would be read with strides in every line below.
    (x0, y0), (x1, y1) = (_steps(xy, index) for xy in points)
    length1 = np.sqrt(x1 * x1 + y1 * y1)
    own_error, own_length = _prediction([m[:, None] for m in _entries(maps)], (x0, y0), (x1, y1))
    their_error, _ = _prediction([m[index] for m in _entries(maps)], (x0, y0), (x1, y1))
    reach = 0.5 * (length1 + own_length) + np.float32(_NOISE_PX)
    error = np.maximum(own_error, their_error) / (reach * reach)
    # A second match at the same place says nothing new.
    error[(x0 * x0 + y0 * y0 < 1) | (length1 < 1)] = np.inf
    agreement = np.stack([np.exp(error * np.float32(-1 / limit**2)) for limit in TOLERANCES])
    return Neighbourhood(index, agreement)


def nearest_matches(points: tuple[Float32, Float32]) -> Index:
    """Find the neighbours of each match in image 0 and in image 1, (M, 2K)."""
    return np.concatenate([_nearest(xy) for xy in points], axis=1)


def consensus(turn: Float32, scale: Float32, weights: Float32) -> Float32:
    """Weighted share of the pair's matches that turn and scale about as each match does, (M,)."""
    if not len(turn):
        return np.zeros(0, np.float32)
    column = (turn / (2 * np.pi) * _TURN_BINS) % _TURN_BINS
    row = (np.clip(scale / _SCALE_RANGE, -1, 1) + 1) / 2 * (_SCALE_BINS - 1)
    across, down = column.astype(np.intp) % _TURN_BINS, np.round(row).astype(np.intp)
    table = np.zeros((_SCALE_BINS, _TURN_BINS), np.float32)
    np.add.at(table, (down, across), weights)
    around = sum(np.roll(table, shift, axis=1) for shift in (-1, 0, 1))
    padded = np.pad(np.asarray(around), ((1, 1), (0, 0)))
    smooth = padded[:-2] + padded[1:-1] + padded[2:]
    return np.asarray(smooth[down, across] / max(float(weights.sum()), 1e-6), np.float32)


def similarities(keypoints0: Keypoints, keypoints1: Keypoints) -> Float32:
    """The map (M, 2, 2) that scale and angle of matched keypoints give."""
    scale = keypoints1.sigma / keypoints0.sigma
    turn = keypoints1.angle - keypoints0.angle
    cosine, sine = scale * np.cos(turn), scale * np.sin(turn)
    return np.stack([cosine, -sine, sine, cosine], axis=1).reshape(-1, 2, 2)


def _nearest(xy: Float32) -> Index:
    count = min(NEIGHBOURS + 1, len(xy))
    if count < 2:
        return np.zeros((len(xy), 0), np.intp)
    # An exact k-d tree: for 1100 points 6 times as fast as a brute-force search by FAISS.
    tree = cv2.flann.Index(np.ascontiguousarray(xy), {"algorithm": _KD_TREE_SINGLE})
    index, _ = tree.knnSearch(np.ascontiguousarray(xy), count, params={"eps": 0.0})
    return np.asarray(index[:, 1:], np.intp)


def _steps(xy: Float32, index: Index) -> tuple[Float32, Float32]:
    """Offsets along x and y from each match to its neighbours, (M, 2K) each."""
    x, y = np.ascontiguousarray(xy.T)
    return x[index] - x[:, None], y[index] - y[:, None]


def _entries(maps: Float32) -> list[Float32]:
    """The entries a, b, c, d of 2x2 maps, (M,) each."""
    return list(np.ascontiguousarray(maps.reshape(-1, 4).T))


def _prediction(
    entries: list[Float32], step0: tuple[Float32, Float32], step1: tuple[Float32, Float32]
) -> tuple[Float32, Float32]:
    """Squared error of the mapped `step0` against `step1`, and its length."""
    a, b, c, d = entries
    x, y = a * step0[0] + b * step0[1], c * step0[0] + d * step0[1]
    error = (x - step1[0]) ** 2 + (y - step1[1]) ** 2
    return error, np.sqrt(x * x + y * y)
