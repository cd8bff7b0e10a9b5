"""Move keypoints so that the refined points of all their matches agree.

The refinement of a match says where the point of image 1 lies that corresponds to the keypoint of
image 0. A keypoint with several matches gets several such answers, but a reconstruction needs one
position. The displacements of all keypoints together are found by robust least squares (Dusmanu et
al. 2020, "Multi-view optimization of local feature geometry"): that of keypoint j should be the
one that its match asks for plus that of its partner i, carried over by the local map of i to j.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matchserve.types import Bool, Float32, Float64, Keypoints
from matchserve.vision.agreement import similarities

_ITERATIONS = 30
# Weight of a keypoint's own position, in matches: small, it only decides where a whole track lies.
# The residual at which a match counts half is in sigmas of the keypoint.
_OWN_WEIGHT = 0.05
_RESIDUAL_SIGMA = 0.5
# How far, in pixels, the displaced keypoints may be from what a refined match asks for, and the
# share of the matches of a pair below which none is dropped: patches that look too different are
# seldom refined (docs/research/match-quality.md).
_AGREEMENT_PX = 1.0
_LEAST_SHARE = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class RefinedPair:
    """Matches (M, 2) of two images, the refined points (M, 2) in the second, and which are refined.

    `weights` (M,) say how much each match counts, such as its confidence.
    """

    images: tuple[str, str]
    pairs: NDArray[np.int32]
    xy1: Float32
    is_refined: Bool
    weights: Float32


def consistent_points(
    keypoints: Mapping[str, Keypoints], matched: Sequence[RefinedPair]
) -> dict[str, Float32]:
    """Return the points (N, 2) of every image, moved where its matches ask for it."""
    names = list(keypoints)
    ends = np.cumsum([0, *(len(keypoints[name]) for name in names)])
    start = dict(zip(names, ends.tolist(), strict=False))
    xy = np.concatenate([np.zeros((0, 2)), *(keypoints[name].xy for name in names)])
    sigma = np.concatenate([np.zeros(0), *(keypoints[name].sigma for name in names)])
    edges = [_Edges.of(pair, keypoints, start) for pair in matched if pair.is_refined.any()]
    moved = xy + (_displacements(_Edges.join(edges), sigma) if edges else 0.0)
    return {
        name: moved[ends[number] : ends[number + 1]].astype(np.float32)
        for number, name in enumerate(names)
    }


def agreeing_matches(
    keypoints: Mapping[str, Keypoints], points: Mapping[str, Float32], pair: RefinedPair
) -> Bool:
    """Mark the matches (M,) of a pair that agree with the points of `consistent_points`.

    A descriptor that tolerates much also matches neighbouring keypoints. Their refined points do
    not agree with those of the other matches, and tracks through both are imprecise.
    """
    rows, (first, second) = pair.pairs, pair.images
    left, right = keypoints[first][rows[:, 0]], keypoints[second][rows[:, 1]]
    moved = (points[first][rows[:, 0]] - left.xy).astype(np.float64)
    asked = pair.xy1 + _mapped(similarities(left, right).astype(np.float64), moved)
    gap = np.linalg.norm(points[second][rows[:, 1]] - asked, axis=1)
    agrees = pair.is_refined & (gap <= _AGREEMENT_PX)
    is_enough = agrees.sum() >= _LEAST_SHARE * len(rows)
    return agrees if is_enough else np.ones(len(rows), np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class _Edges:
    """Refined matches of all pairs: rows of both keypoints, the asked shift, map and weight."""

    one: NDArray[np.intp]
    other: NDArray[np.intp]
    shift: Float64
    maps: Float64
    weights: Float64

    @classmethod
    def of(
        cls, pair: RefinedPair, keypoints: Mapping[str, Keypoints], start: dict[str, int]
    ) -> _Edges:
        rows = pair.pairs[pair.is_refined]
        first, second = pair.images
        left, right = keypoints[first][rows[:, 0]], keypoints[second][rows[:, 1]]
        return cls(
            start[first] + rows[:, 0].astype(np.intp),
            start[second] + rows[:, 1].astype(np.intp),
            (pair.xy1[pair.is_refined] - right.xy).astype(np.float64),
            similarities(left, right).astype(np.float64),
            pair.weights[pair.is_refined].astype(np.float64),
        )

    @classmethod
    def join(cls, edges: Sequence[_Edges]) -> _Edges:
        return cls(
            np.concatenate([e.one for e in edges]),
            np.concatenate([e.other for e in edges]),
            np.concatenate([e.shift for e in edges]),
            np.concatenate([e.maps for e in edges]),
            np.concatenate([e.weights for e in edges]),
        )


def _displacements(edges: _Edges, sigma: Float64) -> Float64:
    """Solve for the displacements (N, 2) of all keypoints by damped, reweighted iterations."""
    moved = np.zeros((len(sigma), 2))
    back = np.asarray(np.linalg.inv(edges.maps), np.float64)
    reach = _RESIDUAL_SIGMA * sigma[edges.other]
    for _ in range(_ITERATIONS):
        asked = _mapped(edges.maps, moved[edges.one]) + edges.shift
        gap = moved[edges.other] - asked
        weights = edges.weights / (1 + (gap**2).sum(axis=1) / reach**2)
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
