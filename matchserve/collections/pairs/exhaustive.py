"""Pairs `exhaustive`: every image with every other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from matchserve.collections.pairs.images import (
    PairImage,
    PairRows,
    Retriever,
    as_rows,
    check_pair_count,
)
from matchserve.errors import InvalidParameter


def exhaustive(images: Sequence[PairImage], arguments: str, _retriever: Retriever) -> PairRows:
    """Return all pairs.

    Raises:
        InvalidParameter: there are arguments, or too many pairs.
    """
    if arguments:
        raise InvalidParameter(f"pairs 'exhaustive' take no arguments, not {arguments!r}")
    check_pair_count(len(images) * (len(images) - 1) // 2)
    ids = np.array([image.id for image in images], np.int64)
    first, second = np.triu_indices(len(ids), 1)
    return as_rows(np.stack([ids[first], ids[second]], axis=1))
