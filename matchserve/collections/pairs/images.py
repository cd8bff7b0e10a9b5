"""What the ways to choose pairs know about an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.collections.scan import natural_key
from matchserve.errors import InvalidParameter

MAX_PAIRS = 10_000_000
"""Maximum number of pairs of a collection: those of 4,472 images with all others. To choose these
takes 1.3 GB; those of 100,000 images, which one client may upload, would take 600 GB."""

PairRows = NDArray[np.int64]
"""Pairs of image numbers, (P, 2); the smaller number first."""

Retriever = Callable[[Sequence[int], int], PairRows]
"""Returns, for each of the images, rows (image, similar image) of the k most similar ones."""


@dataclass(frozen=True, slots=True)
class PairImage:
    """An image to pair; `position` is latitude, longitude and altitude, if known.

    Images that could not be described are not usable: only lists of pairs may name them.
    """

    id: int
    name: str
    position: tuple[float, float, float | None] | None = None
    is_usable: bool = True


def as_rows(pairs: Any) -> PairRows:
    """Return pairs as an array of (smaller, larger) numbers, without pairs of one image."""
    rows = np.asarray(pairs, np.int64).reshape(-1, 2)
    return np.sort(rows[rows[:, 0] != rows[:, 1]], axis=1)


def check_pair_count(count: int) -> None:
    """Refuse more pairs than a collection may have.

    Raises:
        InvalidParameter: there are too many.
    """
    if count > MAX_PAIRS:
        raise InvalidParameter(
            f"these are {count} pairs of images, at most {MAX_PAIRS} are allowed: "
            "use retrieval:20, for example",
            limit=MAX_PAIRS,
            value=count,
        )


def in_natural_order(images: Sequence[PairImage]) -> list[PairImage]:
    """Sort images by name, digits as numbers."""
    return sorted(images, key=lambda image: natural_key(image.name))


def positive(text: str, default: int, what: str) -> int:
    """Parse a positive number; an empty text gives the default.

    Raises:
        InvalidParameter: it is not a positive number.
    """
    try:
        value = int(text) if text else default
    except ValueError:
        value = 0
    if value < 1:
        raise InvalidParameter(f"{what} must be a positive number, not {text!r}")
    return value
