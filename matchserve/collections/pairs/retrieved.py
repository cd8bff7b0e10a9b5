"""Pairs `retrieval:K`: each image with the K that look most similar."""

from __future__ import annotations

from collections.abc import Sequence

from matchserve.collections.pairs.images import (
    PairImage,
    PairRows,
    Retriever,
    as_rows,
    check_pair_count,
    positive,
)

DEFAULT_COUNT = 20


def retrieved(images: Sequence[PairImage], arguments: str, retriever: Retriever) -> PairRows:
    """Return the pairs of each image and the images most similar to it.

    Raises:
        InvalidParameter: the argument is not a positive number, or there are too many pairs.
    """
    count = positive(arguments, DEFAULT_COUNT, "the number of pairs 'retrieval'")
    check_pair_count(len(images) * min(count, len(images)))
    return as_rows(retriever([image.id for image in images], count))
