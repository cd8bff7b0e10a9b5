"""Ranges of options: said once, at the field, and checked for a whole recipe.

margin: Annotated[float, Range(0.0, below=1.0)] = 0.6
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True, slots=True)
class Range:
    """`least` and `most` belong to it, `above` and `below` do not; NaN never does."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    infinite: bool = False

    def holds(self, value: float) -> bool:
        """Whether `value` is in it."""
        if math.isinf(value):
            return self.infinite and value > 0
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        parts = [("at least", self.least), ("more than", self.above)]
        parts += [("at most", self.most), ("less than", self.below)]
        said = [f"{word} {value:g}" for word, value in parts if math.isfinite(value)]
        return " and ".join(said) or "a finite number"


Share = Annotated[float, Range(0.0, 1.0)]
Rate = Annotated[float, Range(above=0.0, most=1.0)]
Positive = Annotated[float, Range(above=0.0)]
NotNegative = Annotated[float, Range(0.0)]
Distance = Annotated[float, Range(0.0, 2.0)]
Angle = Annotated[float, Range(0.0, math.pi)]
Count = Annotated[int, Range(1)]
CountOrNone = Annotated[int, Range(0)]


def range_problems(options: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key, problem) of every number of a dataclass, and of those in it, out of range."""
    hints = typing.get_type_hints(type(options), include_extras=True)
    for field in dataclasses.fields(options):
        value, key = getattr(options, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from range_problems(value, f"{key}.")
        elif isinstance(value, tuple):
            for place, item in enumerate(value):
                if dataclasses.is_dataclass(item):
                    yield from range_problems(item, f"{key}.{place}.")
        for limits in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(limits, Range) and not limits.holds(value):
                yield key, f"expected {limits}, found {value}"
