"""Candidates for nearest neighbours from products of small integers.

Descriptors are rounded to 8 bits in one image and to 7 in the other, and all similarities are one
integer product, which current processors compute several times as fast as one of floats. Rounding
changes a cosine by about 0.002: it can swap candidates that are nearly equal, which are seldom
right, so callers order the few best candidates again by their exact distance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from matchserve.types import Float32, Int32

Product: TypeAlias = Callable[[NDArray[np.uint8], NDArray[np.int8]], Int32]
"""Returns (N, M) sums of rows (N, D), less `ZERO`, times a matrix (D, M)."""

ZERO = 128
"""What the unsigned rows contain for 0."""

# The columns are halved: with 7 bits, the sum of two products fits in the 16 bits of AVX2.
_REACH = 127
_BLOCK_BYTES = 4 << 20
_LEAST = np.iinfo(np.int32).min


@dataclass(frozen=True, slots=True, eq=False)
class Quantised:
    """Descriptors of one image as rows (N, D) of 8 bits, and as columns (D, N) of 7 bits."""

    unsigned: NDArray[np.uint8]
    signed: NDArray[np.int8]

    @classmethod
    def of(cls, descriptors: Float32) -> Quantised:
        """Round float descriptors, all by the same scale."""
        largest = max(float(descriptors.max(initial=1e-12)), -float(descriptors.min(initial=0.0)))
        scaled = descriptors * np.float32(_REACH / largest)
        # Adding a half and cutting off rounds positive numbers.
        scaled += np.float32(ZERO + 0.5)
        unsigned = scaled.astype(np.uint8)
        halves = (unsigned.astype(np.int16) - (ZERO - 1)) >> 1
        return cls(unsigned, np.ascontiguousarray(halves.astype(np.int8).T))


def mutual_pairs(
    one: Quantised, other: Quantised, count: int, product: Product
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Find rows of `one` that are the most similar ones of the row most similar to them.

    Returns these rows (M,), and their `count` most similar rows of `other` (M, count), the best
    first. Rows that are equally similar to one row are all returned.
    """
    columns = other.signed.shape[1]
    best = np.empty((len(one.unsigned), min(count, columns)), np.int64)
    value = np.empty(len(one.unsigned), np.int32)
    most = np.full(columns, _LEAST, np.int32)
    for part in _blocks(len(one.unsigned), columns):
        similarity = product(one.unsigned[part], other.signed)
        np.maximum(most, similarity.max(axis=0), out=most)
        best[part], value[part] = _best(similarity, count)
    rows = np.flatnonzero(value == most[best[:, 0]])
    return rows, best[rows]


def best_columns(
    rows: NDArray[np.uint8], other: Quantised, count: int, product: Product
) -> NDArray[np.int64]:
    """Return the `count` columns of `other` that are most similar to each row, (N, count)."""
    columns = other.signed.shape[1]
    best = np.empty((len(rows), min(count, columns)), np.int64)
    for part in _blocks(len(rows), columns):
        best[part], _ = _best(product(rows[part], other.signed), count)
    return best


def _best(similarity: Int32, count: int) -> tuple[NDArray[np.int64], Int32]:
    """Return the columns of the `count` largest values of each row, and the largest value.

    The values found are overwritten.
    """
    line = np.arange(len(similarity))
    found = [similarity.argmax(axis=1)]
    largest = similarity[line, found[0]]
    # A few passes with `argmax` take a fraction of the time of `argpartition`.
    for _ in range(min(count, similarity.shape[1]) - 1):
        similarity[line, found[-1]] = _LEAST
        found.append(similarity.argmax(axis=1))
    return np.stack(found, axis=1), largest


def _blocks(rows: int, columns: int) -> list[slice]:
    """Divide rows so that the similarities of a block stay in the cache."""
    size = max(1, _BLOCK_BYTES // (4 * max(columns, 1)))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
