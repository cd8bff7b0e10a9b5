"""Ways to choose the pairs of images to match, e.g. `sequential:10,loops+spatial:20,150m`.

Each way is a module with one function from images to pairs; `PAIRINGS` lists them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from matchserve.collections.pairs.exhaustive import exhaustive
from matchserve.collections.pairs.images import (
    PairImage,
    PairRows,
    Retriever,
    as_rows,
    check_pair_count,
)
from matchserve.collections.pairs.listed import listed
from matchserve.collections.pairs.retrieved import retrieved
from matchserve.collections.pairs.sequential import sequential
from matchserve.collections.pairs.spatial import spatial
from matchserve.errors import InvalidParameter

MAX_EXHAUSTIVE = 200
"""Number of images up to which `auto` means all pairs."""

Pairing = Callable[[Sequence[PairImage], str, Retriever], PairRows]
PAIRINGS: dict[str, Pairing] = {
    "exhaustive": exhaustive,
    "sequential": sequential,
    "retrieval": retrieved,
    "spatial": spatial,
    "list": listed,
}
"""Each way by name. Its place is the bit by which the ledger remembers why a pair was chosen."""


@dataclass(frozen=True, slots=True)
class Part:
    """One term of a specification: a way to choose pairs, and its arguments as text."""

    name: str
    arguments: str


def parse(text: str) -> list[Part]:
    """Parse a specification such as `sequential:10,loops+retrieval:20`.

    Raises:
        InvalidParameter: there is no such way to choose pairs.
    """
    parts = []
    for term in text.split("+"):
        name, _, arguments = term.strip().partition(":")
        if name not in (*PAIRINGS, "auto"):
            known = ", ".join(("auto", *PAIRINGS))
            raise InvalidParameter(f"pairs are {term!r}, which is not one of {known}")
        parts.append(Part(name, arguments))
    return parts


def resolve(parts: Sequence[Part], images: Sequence[PairImage]) -> list[Part]:
    """Replace `auto`: all pairs of a small collection, else by position or by appearance."""
    resolved = []
    for part in parts:
        if part.name != "auto":
            resolved.append(part)
        elif len(images) <= MAX_EXHAUSTIVE:
            resolved.append(Part("exhaustive", ""))
        elif sum(image.position is not None for image in images) > len(images) / 2:
            resolved.append(Part("spatial", ""))
        else:
            resolved.append(Part("retrieval", ""))
    return resolved


def choose(
    images: Sequence[PairImage], parts: Sequence[Part], retriever: Retriever
) -> tuple[PairRows, np.ndarray]:
    """Return the union of all parts as (P, 2) sorted image numbers, and a bit mask of reasons.

    Raises:
        InvalidParameter: the arguments of a part are wrong, or there are too many pairs.
    """
    usable = [image for image in images if image.is_usable]
    ids = np.array([image.id for image in usable], np.int64)
    found = []
    for part in parts:
        known = images if part.name == "list" else usable
        pairs = PAIRINGS[part.name](known, part.arguments, retriever)
        found.append((pairs[np.isin(pairs, ids).all(axis=1)], 1 << _bit(part.name)))
        check_pair_count(sum(len(rows) for rows, _ in found))
    rows = as_rows(np.concatenate([rows for rows, _ in found]))
    reasons = np.concatenate([np.full(len(rows), bit, np.int64) for rows, bit in found])
    if len(rows) == 0:
        return rows, reasons
    pairs, inverse = np.unique(rows, axis=0, return_inverse=True)
    joined = np.zeros(len(pairs), np.int64)
    np.bitwise_or.at(joined, inverse.ravel(), reasons)
    return pairs, joined


def reason_names(mask: int) -> list[str]:
    """Return the names of the ways that chose a pair."""
    return [name for name in PAIRINGS if mask >> _bit(name) & 1]


def _bit(name: str) -> int:
    return list(PAIRINGS).index(name)
