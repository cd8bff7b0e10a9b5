"""Aggregate the descriptors of an image to a few bits for each word."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matchserve.libraries import import_faiss
from matchserve.retrieval.codebook import Codebook
from matchserve.types import Float32, UInt8

QUERY_WORDS = 3
"""Number of words that a descriptor of a query belongs to.

Near the border of two words the signs of residuals are unstable; three words repair that, and more
do not help.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """The words of an image, sorted, and the signs of their summed residuals as packed bits."""

    words: NDArray[np.int64]
    codes: UInt8

    def __len__(self) -> int:
        return len(self.words)


def aggregate(vectors: Float32, codebook: Codebook) -> tuple[Words, Words]:
    """Return the words of an image to be found, and those to search with.

    To be found, each descriptor belongs to its nearest word; to search, to its three nearest.
    """
    count = min(QUERY_WORDS, len(codebook))
    if len(vectors) == 0:
        empty = Words(np.zeros(0, np.int64), np.zeros((0, vectors.shape[1] // 8), np.uint8))
        return empty, empty
    _, nearest = import_faiss().knn(vectors, codebook.words, count)
    return (
        _summed(vectors, nearest[:, :1], codebook.words),
        _summed(vectors, nearest, codebook.words),
    )


def _summed(vectors: Float32, nearest: NDArray[np.int64], words: Float32) -> Words:
    """Sum the residuals of each word."""
    flat = nearest.ravel()
    rows = np.repeat(np.arange(len(vectors)), nearest.shape[1])
    order = np.argsort(flat, kind="stable")
    word_ids, starts = np.unique(flat[order], return_index=True)
    residuals = vectors[rows[order]] - words[flat[order]]
    sums = np.add.reduceat(residuals, starts, axis=0)
    return Words(word_ids.astype(np.int64), np.packbits(sums > 0, axis=1))
