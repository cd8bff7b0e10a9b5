"""What the ways to choose pairs know about an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.collections.scan import natural_key
from matchserve.errors import InvalidParameter

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
