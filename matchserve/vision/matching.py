"""Mutual nearest neighbours of two sets of descriptors, and the ratio test, with FAISS.

FAISS computes distances in blocks, so memory does not grow with the product of the two sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import (
    FeatureMismatch,
    InvalidParameter,
)
from matchserve.types import Bool, DescriptorKind, Features, Float32, Matches
from matchserve.vision.nearest import nearest_rows, order_exactly
from matchserve.vision.quantised import Product, Quantised, best_columns, mutual_pairs

# Candidates looked at for the next one at another place, and how far away another place is.
_CANDIDATES = 4
_APART_PX = 3.0


@dataclass(frozen=True, slots=True)
class MatchOptions:
    """Which mutual nearest neighbours are kept.

    `ratio` is the maximum of Lowe's ratio test, nearest over second-nearest distance. It is tested
    in both directions, so the order of the images does not matter. `max_distance` is Euclidean
    for float descriptors and a number of bits for binary ones.
    """

    ratio: float | None = None
    max_distance: float | None = None

    def __post_init__(self) -> None:
        if self.ratio is not None and not 0.0 < self.ratio <= 1.0:
            raise InvalidParameter(f"ratio is {self.ratio}, must be above 0 and at most 1")
        if self.max_distance is not None and not (
            math.isfinite(self.max_distance) and self.max_distance > 0
        ):
            raise InvalidParameter(f"max_distance is {self.max_distance}, must be above 0")


@dataclass(frozen=True, slots=True, eq=False)
class Putative:
    """Mutual nearest neighbours, and how much nearer each is than the next candidate, (M, 2).

    `ratio` is the distance over that of the nearest keypoint at another place (Mishkin et al.
    2015, "first geometrically inconsistent"), from image 0 and from image 1.
    """

    matches: Matches
    ratio: Float32


def match(left: Features, right: Features, options: MatchOptions | None = None) -> Matches:
    """Match two described images.

    Raises:
        FeatureMismatch: different models made the descriptors.
    """
    _check_comparable(left, right)
    return mutual_nn(left.descriptors, right.descriptors, options)


def putative(
    left: Features,
    right: Features,
    options: MatchOptions | None = None,
    product: Product | None = None,
) -> Putative:
    """Match two described images, and compare each match with the next candidates.

    With `product`, neighbours of float descriptors are searched by integer products, which is
    faster and misses a few matches among nearly equal candidates.

    Raises:
        FeatureMismatch: different models made the descriptors.
    """
    _check_comparable(left, right)
    options = options or MatchOptions()
    if len(left) == 0 or len(right) == 0:
        empty = mutual_nn(left.descriptors, right.descriptors, options)
        return Putative(empty, np.zeros((0, 2), np.float32))
    if product is None or left.kind != "float":
        search = _Search.of(left.descriptors, right.descriptors, _CANDIDATES)
    else:
        search = _Search.by_integers(left.descriptors, right.descriptors, _CANDIDATES, product)
    found = search.mutual(options)
    backward = search.back_row[found]
    ratios = (
        _distinct_ratio(search.forward_distance[found], right.keypoints.xy[search.forward[found]]),
        _distinct_ratio(search.back_distance[backward], left.keypoints.xy[search.back[backward]]),
    )
    return Putative(search.matches(found, left.descriptors), np.stack(ratios, axis=1))


def _check_comparable(left: Features, right: Features) -> None:
    if left.model != right.model:
        raise FeatureMismatch(f"features of {left.model!r} and {right.model!r} cannot be matched")
    if left.fingerprint and right.fingerprint and left.fingerprint != right.fingerprint:
        raise FeatureMismatch(
            f"features of two different models, both named {left.model!r} "
            f"({left.fingerprint} and {right.fingerprint}), cannot be matched"
        )
    if left.descriptors.shape[1] != right.descriptors.shape[1] or left.kind != right.kind:
        raise FeatureMismatch("the descriptors have different lengths or kinds")


def mutual_nn(
    left: NDArray[Any], right: NDArray[Any], options: MatchOptions | None = None
) -> Matches:
    """Find the pairs (i, j) where j is the nearest to i and i the nearest to j.

    Rows are float32 unit vectors, or packed bits as uint8.
    """
    options = options or MatchOptions()
    if len(left) == 0 or len(right) == 0:
        return as_matches(np.zeros((0, 2)), np.zeros(0), left)
    search = _Search.of(left, right, 1 if options.ratio is None else 2)
    return search.matches(search.mutual(options), left)


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """Neighbours of the left rows `rows` (R,) in `forward` (R, C), nearest first, and back.

    `back[back_row[k]]` are the left neighbours of the right row `partner[k]`.
    """

    rows: NDArray[np.intp]
    forward: NDArray[np.int64]
    forward_distance: Float32
    partner: NDArray[np.int64]
    back: NDArray[np.int64]
    back_distance: Float32
    back_row: NDArray[np.intp]

    @classmethod
    def of(cls, left: NDArray[Any], right: NDArray[Any], count: int) -> _Search:
        """Search all rows both ways."""
        forward_distance, forward = nearest_rows(left, right, count)
        # Only rows that are the nearest of another row can be mutual: search back for those only.
        wanted = np.unique(forward[:, 0])
        back_distance, back = nearest_rows(right[wanted], left, count)
        back_row = np.searchsorted(wanted, forward[:, 0])
        rows = np.arange(len(left))
        return cls(rows, forward, forward_distance, forward[:, 0], back, back_distance, back_row)

    @classmethod
    def by_integers(cls, left: Float32, right: Float32, count: int, product: Product) -> _Search:
        """Search neighbours of the rows that integer products find to be mutual."""
        one, other = Quantised.of(left), Quantised.of(right)
        rows, candidates = mutual_pairs(one, other, count, product)
        partner = candidates[:, 0]
        forward_distance, forward = order_exactly(left[rows], right, candidates, count)
        candidates = best_columns(other.unsigned[partner], one, count, product)
        back_distance, back = order_exactly(right[partner], left, candidates, count)
        same = np.arange(len(rows))
        return cls(rows, forward, forward_distance, partner, back, back_distance, same)

    def mutual(self, options: MatchOptions) -> NDArray[np.intp]:
        """Positions in `rows` of matches that are mutual, and that `options` keep."""
        keep = self.back[self.back_row, 0] == self.rows
        keep &= self.forward[:, 0] == self.partner
        keep &= _is_distinct(self.forward_distance, options.ratio)
        keep &= _is_distinct(self.back_distance, options.ratio)[self.back_row]
        if options.max_distance is not None:
            keep &= self.forward_distance[:, 0] <= options.max_distance
        return np.flatnonzero(keep)

    def matches(self, found: NDArray[np.intp], left: NDArray[Any]) -> Matches:
        """Return the matches at positions `found` of `rows`."""
        pairs = np.stack([self.rows[found], self.forward[found, 0]], axis=1)
        return as_matches(pairs, self.forward_distance[found, 0], left)


def _distinct_ratio(distance: Float32, xy: Float32) -> Float32:
    """Nearest distance (M, C) over that of the first candidate at another place than the first."""
    is_apart = np.linalg.norm(xy - xy[:, :1], axis=2) > _APART_PX
    column = np.where(is_apart.any(axis=1), is_apart.argmax(axis=1), distance.shape[1] - 1)
    second = distance[np.arange(len(distance)), column]
    return np.asarray(distance[:, 0] / np.maximum(second, 1e-6), np.float32)


def _is_distinct(distance: Float32, ratio: float | None) -> Bool:
    """Apply Lowe's ratio test; a row without a second neighbour passes."""
    if ratio is None or distance.shape[1] < 2:
        return np.ones(len(distance), np.bool_)
    return np.asarray(distance[:, 0] < ratio * distance[:, 1])


def as_matches(pairs: NDArray[Any], distance: NDArray[Any], like: NDArray[Any]) -> Matches:
    """Return index pairs and distances of descriptors such as `like` as matches with scores."""
    kind: DescriptorKind = "binary" if like.dtype == np.uint8 else "float"
    # Unit vectors: 1 - d^2/4 = (1 + cosine) / 2. Binary: the share of equal bits.
    score = 1 - distance**2 / 4 if kind == "float" else 1 - distance / (8 * like.shape[1])
    return Matches(pairs.astype(np.int32), distance.astype(np.float32), score.astype(np.float32))
