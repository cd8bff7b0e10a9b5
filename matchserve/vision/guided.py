"""Guided matching: find more matches along a geometry that is known already.

A keypoint without a match is compared only with those that the geometry allows: near its epipolar
line, or near the point that the homography maps it to. The nearest of those is a match if it is
the nearest both ways, though another keypoint elsewhere may look more alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.types import POINT_MAPS, Bool, Features, Float32, Float64, Int32, Verification
from matchserve.vision.cameras import Camera
from matchserve.vision.matching import Putative, as_matches

# Rows of descriptors that are compared at a time: memory does not grow with both numbers.
_BLOCK = 256


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """Where the match of a point may be: within `radius_px` of its line or its mapped point."""

    matrix: Float64
    maps_points: bool
    radius_px: float

    @classmethod
    def of(
        cls,
        verification: Verification,
        threshold_px: float,
        cameras: tuple[Camera, Camera] | None = None,
    ) -> Band | None:
        """Return the band of a geometry; None if none was found."""
        matrix = verification.matrix
        if matrix is None:
            return None
        if verification.kind == "pose" and cameras is not None:
            inverse0, inverse1 = (np.linalg.inv(camera.matrix) for camera in cameras)
            matrix = inverse1.T @ matrix @ inverse0
        return cls(matrix, verification.kind in POINT_MAPS, threshold_px)

    def allows(self, points0: Float64, points1: Float64) -> Bool:
        """Return which pairs of points, (N, 2) and (M, 2), the geometry allows, (N, M)."""
        one, other = _homogeneous(points0), _homogeneous(points1)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.maps_points:
                mapped = one @ self.matrix.T
                gap = (mapped[:, :2] / mapped[:, 2:])[:, None] - points1[None]
                return np.asarray((gap**2).sum(axis=2) <= self.radius_px**2)
            lines1, lines0 = one @ self.matrix.T, other @ self.matrix
            error = np.abs(lines1 @ other.T)
            steepest = np.minimum(
                np.linalg.norm(lines1[:, :2], axis=1)[:, None],
                np.linalg.norm(lines0[:, :2], axis=1)[None],
            )
            return np.asarray(error <= self.radius_px * steepest)


def find_guided(
    features: tuple[Features, Features],
    points: tuple[Float64, Float64],
    matched: Int32,
    band: Band,
) -> Putative:
    """Match the keypoints that are not in `matched` (M, 2) yet, within a band.

    `points` are the keypoints as the geometry sees them: without lens distortion for a pose.
    """
    free = [_free_rows(len(side), matched[:, number]) for number, side in enumerate(features)]
    rows = [_unit_rows(side.descriptors[rows]) for side, rows in zip(features, free, strict=True)]
    if not len(free[0]) or not len(free[1]):
        return _putative(np.zeros((0, 2), np.intp), np.zeros((0, 3)), features)
    best = _Best.empty(len(free[0]), len(free[1]))
    for start in range(0, len(free[0]), _BLOCK):
        block = slice(start, start + _BLOCK)
        similarity = rows[0][block] @ rows[1].T
        allowed = band.allows(points[0][free[0][block]], points[1][free[1]])
        best.add(start, similarity, allowed)
    pairs, values = best.mutual()
    found = np.stack([free[0][pairs[:, 0]], free[1][pairs[:, 1]]], axis=1)
    return _putative(found, values, features)


@dataclass(slots=True, eq=False)
class _Best:
    """The most similar allowed candidate of each row and column, and the two most similar ones."""

    row: NDArray[np.intp]
    row_value: NDArray[Any]
    row_two: NDArray[Any]
    column: NDArray[np.intp]
    column_value: NDArray[Any]
    column_two: NDArray[Any]

    @classmethod
    def empty(cls, rows: int, columns: int) -> _Best:
        return cls(
            np.zeros(rows, np.intp),
            np.full(rows, -np.inf),
            np.full((rows, 2), -np.inf),
            np.zeros(columns, np.intp),
            np.full(columns, -np.inf),
            np.full((columns, 2), -np.inf),
        )

    def add(self, start: int, similarity: NDArray[Any], is_allowed: Bool) -> None:
        """Add a block of rows."""
        allowed = np.where(is_allowed, similarity, -np.inf)
        block = slice(start, start + len(allowed))
        self.row[block] = allowed.argmax(axis=1)
        self.row_value[block] = allowed.max(axis=1)
        self.row_two[block] = _two_largest(similarity)
        is_better = allowed.max(axis=0) > self.column_value
        self.column = np.where(is_better, start + allowed.argmax(axis=0), self.column)
        self.column_value = np.maximum(self.column_value, allowed.max(axis=0))
        candidates = np.concatenate([self.column_two, _two_largest(similarity.T)], axis=1)
        self.column_two = _two_largest(candidates)

    def mutual(self) -> tuple[NDArray[np.intp], NDArray[Any]]:
        """Return mutual pairs (P, 2), and similarity of match, rival of row, of column (P, 3).

        A rival is the most similar other keypoint, whether the geometry allows it or not: this is
        what the networks that judge matches know.
        """
        numbers = np.arange(len(self.row))
        is_mutual = (self.column[self.row] == numbers) & np.isfinite(self.row_value)
        one = numbers[is_mutual]
        other = self.row[one]
        value = self.row_value[one]
        rivals = (
            np.where(two[:, 0] > value, two[:, 0], two[:, 1])
            for two in (self.row_two[one], self.column_two[other])
        )
        return np.stack([one, other], axis=1), np.stack([value, *rivals], axis=1)


def _two_largest(values: NDArray[Any]) -> NDArray[Any]:
    """Return the two largest values of each row, largest first; -inf if there is one only."""
    if values.shape[1] < 2:
        return np.concatenate([values, np.full((len(values), 1), -np.inf)], axis=1)
    two = np.partition(values, values.shape[1] - 2, axis=1)[:, -2:]
    return two[:, ::-1]


def _putative(pairs: NDArray[np.intp], values: NDArray[Any], features: Any) -> Putative:
    """Return matches with the distances that cosines, or shares of equal bits, stand for."""
    descriptors = features[0].descriptors
    # No rival at all counts as an opposite one.
    gaps = np.maximum(1 - np.maximum(values, -1.0), 0.0)
    if descriptors.dtype == np.uint8:
        distances = 4 * descriptors.shape[1] * gaps
    else:
        distances = np.sqrt(2 * gaps)
    # Networks that judge matches know ratios up to 1: the rival is as near.
    ratio = np.minimum(distances[:, :1] / np.maximum(distances[:, 1:], 1e-6), 1.0)
    matches = as_matches(pairs, distances[:, 0], descriptors)
    return Putative(matches, ratio.astype(np.float32))


def _unit_rows(descriptors: NDArray[Any]) -> Float32:
    """Return rows whose products are cosines; bits become -1 and 1."""
    if descriptors.dtype != np.uint8:
        return np.asarray(descriptors, np.float32)
    bits = np.unpackbits(descriptors, axis=1).astype(np.float32)
    return np.asarray((2 * bits - 1) / np.sqrt(np.float32(bits.shape[1])), np.float32)


def _free_rows(count: int, matched: NDArray[Any]) -> NDArray[np.intp]:
    is_free = np.ones(count, np.bool_)
    is_free[matched] = False
    return np.flatnonzero(is_free)


def _homogeneous(points: Float64) -> Float64:
    return np.column_stack([np.asarray(points, np.float64), np.ones(len(points))])
