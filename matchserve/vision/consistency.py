"""Move keypoints so that the refined points of all their matches agree.

The refinement of a match says where the point of image 1 lies that corresponds to the keypoint of
image 0. A keypoint with several matches gets several such answers, but a reconstruction needs one
position. The displacements of all keypoints together are found by robust least squares (Dusmanu et
al. 2020, "Multi-view optimization of local feature geometry"): that of keypoint j should be the
one that its match asks for plus that of its partner i, carried over by the local map of i to j.
Matches that contradict others, or the geometry of their pair, are dropped: tracks through them
would be imprecise (docs/research/match-quality.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.types import Bool, Float32, Float64, Keypoints
from matchserve.vision.estimators import FitOptions, fit_matrix
from matchserve.vision.tracks import unambiguous_matches

_ITERATIONS = 30
# Weight of a keypoint's own position, in matches: small, it only decides where a whole track lies.
# The residual at which a match counts half is in sigmas of the keypoint.
_OWN_WEIGHT = 0.05
_RESIDUAL_SIGMA = 0.5
# How far, in pixels of the working image, the displaced keypoints may be from what a refined match
# asks for and from their epipolar lines, and the share of the matches of a pair below which none
# is dropped for that: patches that look too different are seldom refined.
_AGREEMENT_PX = 1.0
_EPIPOLAR_PX = 1.5
_LEAST_SHARE = 0.5
_LEAST_FITTED = 16
# The variance of an aligned position grows with 1 - correlation; this is added to it.
_CORRELATION_NOISE = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class RefinedPair:
    """Matches (M, 2) of two images, the refined points (M, 2) in the second, and which are refined.

    `affine` (M, 2, 2) maps offsets in the first image to offsets in the second. `weights` (M,) say
    how much each match counts, such as its confidence. `pixel` is the side of a pixel of the
    second image as it was refined, in pixels as sent.
    """

    images: tuple[str, str]
    pairs: NDArray[np.int32]
    xy1: Float32
    affine: Float32
    is_refined: Bool
    weights: Float32
    pixel: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """Points (N, 2) by image, and for every pair which of its matches (M,) agree with them."""

    points: Mapping[str, Float32]
    agreeing: Sequence[Bool]


def match_weights(confidence: Float32, correlation: Float32) -> Float32:
    """Return how much refined matches (M,) count: more if they are sure and look alike."""
    return np.asarray(confidence / (1 + _CORRELATION_NOISE - correlation), np.float32)


def agree(keypoints: Mapping[str, Keypoints], matched: Sequence[RefinedPair]) -> Agreement:
    """Find the one position of every keypoint, and the matches that agree with it.

    No track of agreeing matches has two keypoints in one image.
    """
    edges = _Edges.of(matched, keypoints)
    counts = [len(one) for one in keypoints.values()]
    image = np.repeat(np.arange(len(counts)), counts)
    # Refined matches come first, whatever their weight.
    rank = edges.weights + (edges.weights.max(initial=0.0) + 1) * edges.is_refined
    kept = unambiguous_matches(edges.one, edges.other, image, rank)
    moved = _displacements(edges, edges.weights * (kept & edges.is_refined), _sigmas(keypoints))
    gap = np.linalg.norm(moved[edges.other] - edges.asked(moved), axis=1)
    agreeing = kept & edges.is_refined & (gap <= _AGREEMENT_PX * edges.pixel)
    shifts = dict(zip(keypoints, _parts(moved, counts), strict=True))
    points = {name: (one.xy + shifts[name]).astype(np.float32) for name, one in keypoints.items()}
    lengths = [len(pair.pairs) for pair in matched]
    rows = zip(matched, _parts(agreeing, lengths), _parts(kept, lengths), strict=True)
    agrees = [
        _enough(_near_epipolar_lines(points, pair, near), unambiguous)
        for pair, near, unambiguous in rows
    ]
    return Agreement(points, agrees)


def _parts(values: NDArray[Any], lengths: Sequence[int]) -> list[NDArray[Any]]:
    return np.split(values, np.cumsum(lengths)[:-1]) if lengths else []


def _sigmas(keypoints: Mapping[str, Keypoints]) -> Float64:
    return np.concatenate([np.zeros(0), *(one.sigma for one in keypoints.values())])


def _enough(agreeing: Bool, unambiguous: Bool) -> Bool:
    """Return the matches that agree, or all unambiguous ones where too few agree."""
    return agreeing if agreeing.sum() >= _LEAST_SHARE * len(agreeing) else unambiguous


def _near_epipolar_lines(points: Mapping[str, Float32], pair: RefinedPair, chosen: Bool) -> Bool:
    """Return which of the chosen matches are near the epipolar lines of a matrix fitted to them."""
    if chosen.sum() < _LEAST_FITTED:
        return chosen
    p0, p1 = (
        points[name][pair.pairs[chosen, side]].astype(np.float64)
        for side, name in enumerate(pair.images)
    )
    options = FitOptions(threshold_px=_EPIPOLAR_PX * pair.pixel, fast=True)
    fit = fit_matrix("fundamental", p0, p1, options, pair.weights[chosen])
    near = np.zeros_like(chosen)
    near[chosen] = fit.inliers
    return near if near.sum() >= _LEAST_SHARE * chosen.sum() else chosen


@dataclass(frozen=True, slots=True, eq=False)
class _Edges:
    """The M matches of all pairs: rows of both keypoints, and the columns of `RefinedPair`.

    `shift` (M, 2) is from the keypoint of image 1 to the refined point.
    """

    one: NDArray[np.intp]
    other: NDArray[np.intp]
    shift: Float64
    maps: Float64
    weights: Float64
    is_refined: Bool
    pixel: Float64

    @classmethod
    def of(cls, matched: Sequence[RefinedPair], keypoints: Mapping[str, Keypoints]) -> _Edges:
        counts = [len(one) for one in keypoints.values()]
        start = dict(zip(keypoints, np.cumsum([0, *counts]).tolist(), strict=False))
        columns = [
            (
                start[pair.images[0]] + pair.pairs[:, 0].astype(np.intp),
                start[pair.images[1]] + pair.pairs[:, 1].astype(np.intp),
                pair.xy1.astype(np.float64) - keypoints[pair.images[1]].xy[pair.pairs[:, 1]],
                pair.affine.astype(np.float64),
                pair.weights.astype(np.float64),
                pair.is_refined,
                np.full(len(pair.pairs), pair.pixel),
            )
            for pair in matched
        ]
        none = np.zeros(0, np.intp)
        empty = (none, none, np.zeros((0, 2)), np.zeros((0, 2, 2)))
        columns.append((*empty, np.zeros(0), np.zeros(0, np.bool_), np.zeros(0)))
        return cls(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))

    def asked(self, moved: Float64) -> Float64:
        """Return the displacement (M, 2) of the keypoints of image 1 that the matches ask for."""
        return _mapped(self.maps, moved[self.one]) + self.shift


def _displacements(edges: _Edges, given: Float64, sigma: Float64) -> Float64:
    """Solve for the displacements (N, 2) of all keypoints by damped, reweighted iterations.

    `given` (M,) are the weights of the matches; those of weight 0 are not used.
    """
    moved = np.zeros((len(sigma), 2))
    back = np.asarray(np.linalg.inv(edges.maps), np.float64)
    reach = _RESIDUAL_SIGMA * sigma[edges.other]
    for _ in range(_ITERATIONS):
        asked = edges.asked(moved)
        gap = moved[edges.other] - asked
        weights = given / (1 + (gap**2).sum(axis=1) / reach**2)
        # In units of the own sigma both ends of a match count the same.
        asked_back = _mapped(back, moved[edges.other] - edges.shift)
        total = _sums(edges.other, weights, asked, len(sigma))
        total += _sums(edges.one, weights, asked_back, len(sigma))
        count = np.bincount(edges.other, weights, len(sigma))
        count += np.bincount(edges.one, weights, len(sigma))
        # Half a step: whole ones swing between two images that only match each other.
        moved = 0.5 * (moved + total / (count + _OWN_WEIGHT)[:, None])
    return moved


def _mapped(maps: Float64, offsets: Float64) -> Float64:
    return np.asarray(np.einsum("mij,mj->mi", maps, offsets))


def _sums(rows: NDArray[np.intp], weights: Float64, values: Float64, count: int) -> Float64:
    columns = [np.bincount(rows, weights * values[:, i], count) for i in (0, 1)]
    return np.stack(columns, axis=1)
