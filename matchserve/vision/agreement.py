"""How far neighbouring matches agree: each predicts where its neighbours go.

A match carries a local map from image 0 to image 1: the similarity of its two keypoints, or the
affine map of the refinement. With it, match i predicts where the point of a neighbour j should be
in image 1. Right matches on one surface predict each other; wrong ones do so only by chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matchserve.libraries import import_faiss
from matchserve.types import Float32, Keypoints

# Neighbours asked in each image, and the errors, relative to their distance, that count as one.
NEIGHBOURS = 16
TOLERANCES = (0.1, 0.25, 0.6)
_NOISE_PX = 2.0
# Bins of the histogram of rotation and log2 scale over all matches of the pair.
_TURN_BINS, _SCALE_BINS, _SCALE_RANGE = 36, 24, 3.0


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    """Neighbours of M matches in both images, (M, 2K) indices, and agreement (M, 2K, T) in 0..1."""

    index: NDArray[np.intp]
    agreement: Float32

    def sums(self, weights: Float32) -> Float32:
        """Weighted agreement in each image, (M, 2T)."""
        count = self.index.shape[1] // 2
        share = self.agreement * weights[self.index][:, :, None]
        halves = share.reshape(len(share), 2, count, len(TOLERANCES)).sum(axis=2)
        return np.asarray(halves.reshape(len(share), 2 * len(TOLERANCES)), np.float32)


def neighbourhood(points: tuple[Float32, Float32], maps: Float32) -> Neighbourhood:
    """Find the neighbours of matched points (M, 2) and measure how far their maps agree."""
    index = np.concatenate([_nearest(xy) for xy in points], axis=1)
    if index.shape[1] == 0:
        return Neighbourhood(index, np.zeros((*index.shape, len(TOLERANCES)), np.float32))
    step0 = points[0][index] - points[0][:, None]
    step1 = points[1][index] - points[1][:, None]
    own = np.einsum("mij,mkj->mki", maps, step0)
    theirs = np.einsum("mkij,mkj->mki", maps[index], step0)
    reach = 0.5 * (_length(step1) + _length(own)) + _NOISE_PX
    error = np.maximum(_length(own - step1), _length(theirs - step1)) / reach
    limits = np.array(TOLERANCES, np.float32)
    agreement = np.exp(-((error[:, :, None] / limits) ** 2))
    # A second match at the same place says nothing new.
    agreement[(_length(step0) < 1) | (_length(step1) < 1)] = 0
    return Neighbourhood(index, agreement.astype(np.float32))


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


def _nearest(xy: Float32) -> NDArray[np.intp]:
    count = min(NEIGHBOURS + 1, len(xy))
    centred = np.ascontiguousarray(xy - xy.mean(axis=0)) if len(xy) else xy
    if count < 2:
        return np.zeros((len(xy), 0), np.intp)
    _, index = import_faiss().knn(centred, centred, count)
    return np.asarray(index[:, 1:], np.intp)


def _length(vectors: Float32) -> Float32:
    return np.asarray(np.sqrt((vectors * vectors).sum(axis=-1)), np.float32)
