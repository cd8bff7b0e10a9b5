"""Find the most similar images of a collection by their own descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from matchserve.collections.pairs.images import PairRows, Retriever
from matchserve.collections.stages import Run
from matchserve.collections.words import codebook_path, make_words, read_words
from matchserve.models.card import ModelCard
from matchserve.objects import Place
from matchserve.retrieval.lists import InvertedLists
from matchserve.sealed import read_sealed

IMAGES_PER_TASK = 16


def retriever_of(run: Run, card: ModelCard) -> Retriever:
    """Return a function that finds the most similar described images.

    The words of images are made by the workers of the run when the function is first called.
    """

    def retrieve(ids: Sequence[int], count: int) -> PairRows:
        rows = [row for row in run.ledger.images() if row.state == "described"]
        if len(rows) < 2:
            return np.zeros((0, 2), np.int64)
        paths = run.paths
        keys = [(row.feature_key, paths[row.name]) for row in rows]
        codebook = codebook_path(run.setup, keys, card)
        _make_all(run, codebook, card.fingerprint, keys)
        numbers = {row.id: number for number, row in enumerate(rows)}
        lists = _filled(run, codebook, [key for key, _ in keys])
        found = []
        known = np.array([row.id for row in rows], np.int64)
        for image in ids:
            _, query = read_words(run.setup, codebook, rows[numbers[image]].feature_key)
            scores = lists.scores(query)
            scores[numbers[image]] = 0.0
            # Equal scores in the order of the images: the pairs must not depend on chance.
            best = np.argsort(-scores, kind="stable")[:count]
            best = best[scores[best] > 0]
            found.append(np.stack([np.full(len(best), image), known[best]], axis=1))
        return np.concatenate(found) if found else np.zeros((0, 2), np.int64)

    return retrieve


def _make_all(run: Run, codebook: Place, fingerprint: str, keys: list[tuple[str, Path]]) -> None:
    size = IMAGES_PER_TASK
    tasks = [
        (run.setup, codebook, fingerprint, keys[start : start + size])
        for start in range(0, len(keys), size)
    ]
    for _ in run.pool.run(make_words, tasks):
        pass


def _filled(run: Run, codebook: Place, keys: list[str]) -> InvertedLists:
    lists: InvertedLists | None = None
    for key in keys:
        words, _ = read_words(run.setup, codebook, key)
        if lists is None:
            # The lists are as long as the codebook; 16 bits of word numbers are enough for it.
            lists = InvertedLists(_word_count(codebook), 8 * words.codes.shape[1])
        lists.add(words)
    if lists is None:
        raise ValueError("no images to search")
    return lists


def _word_count(codebook: Place) -> int:
    return len(read_sealed(codebook)["words"])
