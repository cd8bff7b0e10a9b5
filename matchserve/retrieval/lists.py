"""Inverted lists: for each word, the images that have it, and their bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.libraries import import_faiss
from matchserve.retrieval.asmk import Words
from matchserve.types import Float64

SELECTIVITY = 0.25
"""Least similarity of two codes, from -1 to 1, that counts. It is also what makes search fast."""

EXPONENT = 3


class InvertedLists:
    """Finds the images that share words with a query.

    Rare words count more (idf), and images with many words do not win by their number.
    """

    def __init__(self, words: int, bits: int) -> None:
        """Make empty lists for a codebook of `words` words and codes of `bits` bits."""
        faiss = import_faiss()
        self.bits = bits
        # Entries are assigned to words by us: the quantizer only has to have the right size.
        self._quantizer = faiss.IndexBinaryFlat(bits)
        self._quantizer.add(np.zeros((words, bits // 8), np.uint8))
        self._index = faiss.IndexBinaryIVF(self._quantizer, bits, words)
        self._index.is_trained = True
        self._index.nprobe = 1
        self._frequency = np.zeros(words, np.int64)
        self._words: list[NDArray[np.int64]] = []
        self._norms: Float64 | None = None
        self._idf2 = np.zeros(words)
        similarity = 1 - 2 * np.arange(bits + 1) / bits
        self._weight = np.where(similarity > SELECTIVITY, similarity, 0.0) ** EXPONENT
        self._radius = int((similarity > SELECTIVITY).sum())  # distances below it count

    def __len__(self) -> int:
        return len(self._words)

    def add(self, words: Words) -> int:
        """Add an image; return its number."""
        number = len(self._words)
        # FAISS keeps pointers: arrays given as temporaries would be freed before it reads them.
        codes = np.ascontiguousarray(words.codes)
        ids = np.full(len(words), number, np.int64)
        lists = np.ascontiguousarray(words.words)
        faiss = import_faiss()
        self._index.add_core(
            len(words), faiss.swig_ptr(codes), faiss.swig_ptr(ids), faiss.swig_ptr(lists)
        )
        self._frequency[words.words] += 1
        self._words.append(words.words)
        self._norms = None
        return number

    def scores(self, query: Words) -> Float64:
        """Return the similarity of every image to a query."""
        scores = np.zeros(len(self))
        if len(query) == 0 or len(self) == 0:
            return scores
        norms = self._weigh()
        limits, distance, image = self._search(query)
        word = np.repeat(query.words, np.diff(limits))
        values = self._idf2[word] * self._weight[distance]
        np.add.at(scores, image, values)
        return np.asarray(scores * norms)

    def _search(
        self, query: Words
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        from faiss.contrib import ivf_tools

        search: Any = ivf_tools.range_search_preassigned
        codes = np.ascontiguousarray(query.codes)
        lists = np.ascontiguousarray(query.words[:, None])
        limits, distance, image = search(self._index, codes, self._radius, lists)
        return limits.astype(np.int64), distance.astype(np.int32), image

    def _weigh(self) -> Float64:
        """Compute the weights of words and images from all images added so far."""
        if self._norms is None:
            # Words that all images have would weigh nothing, and a pair of images alone has only
            # such words: hence the added one.
            rarity = np.log((1 + len(self)) / np.maximum(self._frequency, 1))
            self._idf2 = rarity**2
            sums = np.array([self._idf2[words].sum() for words in self._words])
            self._norms = 1 / np.sqrt(np.maximum(sums, 1e-12))
        return self._norms
