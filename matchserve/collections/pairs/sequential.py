"""Pairs `sequential:N`: each image with the next N of its folder, in natural order of the names.

`,loops` adds, for every tenth image, the most similar images outside of its window, so that a
camera that returns to a place closes the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import PurePosixPath

import numpy as np

from matchserve.collections.pairs.images import (
    PairImage,
    PairRows,
    Retriever,
    as_rows,
    check_pair_count,
    in_natural_order,
    positive,
)
from matchserve.errors import InvalidParameter

DEFAULT_WINDOW = 10
LOOP_STEP = 10
LOOP_CANDIDATES = 10


def sequential(images: Sequence[PairImage], arguments: str, retriever: Retriever) -> PairRows:
    """Return the pairs of neighbours in each folder, and loops if requested.

    Raises:
        InvalidParameter: the arguments are not a number, optionally followed by `,loops`, or there
            are too many pairs.
    """
    window_text, _, extra = arguments.partition(",")
    if extra not in ("", "loops"):
        raise InvalidParameter(f"pairs 'sequential' take N or N,loops, not {arguments!r}")
    window = positive(window_text, DEFAULT_WINDOW, "the window of pairs 'sequential'")
    check_pair_count(len(images) * min(window, len(images)))
    ordered = in_natural_order(images)
    pairs: list[tuple[int, int]] = []
    place: dict[int, tuple[str, int]] = {}
    for folder, members in groupby(ordered, key=_folder):
        ids = [image.id for image in members]
        place.update({number: (folder, index) for index, number in enumerate(ids)})
        pairs += [
            (first, second)
            for index, first in enumerate(ids)
            for second in ids[index + 1 : index + 1 + window]
        ]
    if extra:
        pairs += _loops([image.id for image in ordered], place, window, retriever)
    return as_rows(pairs)


def _loops(
    ids: Sequence[int], place: dict[int, tuple[str, int]], window: int, retriever: Retriever
) -> list[tuple[int, int]]:
    found = retriever(ids[::LOOP_STEP], LOOP_CANDIDATES + 2 * window)
    loops, taken = [], np.zeros(max(ids, default=0) + 1, np.int64)
    for first, second in found.tolist():
        folder0, index0 = place[first]
        folder1, index1 = place[second]
        is_near = folder0 == folder1 and abs(index0 - index1) <= window
        if not is_near and taken[first] < LOOP_CANDIDATES:
            loops.append((first, second))
            taken[first] += 1
    return loops


def _folder(image: PairImage) -> str:
    return str(PurePosixPath(image.name).parent)
