"""The grid of a study: the combinations of values to train, and which of them is best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Annotated

from pydantic import Field

Value = float | int | str | bool
Grid = dict[str, Annotated[tuple[Value, ...], Field(strict=False, min_length=1)]]
"""A list of values for each key of a recipe, such as `optim.lr`."""
Point = Mapping[str, Value]
"""One value for each key of a grid."""


def grid_points(grid: Mapping[str, Iterable[Value]]) -> list[Point]:
    """Return every combination of the values of a grid; a grid without keys has one, the empty."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def label(point: Point) -> str:
    """Return a short name of a point for names of models, such as `lr0.5`."""
    parts = [f"{key.rpartition('.')[2]}{value}" for key, value in point.items()]
    # Names of models have no plus sign: 1e+30.
    return "-".join(parts).lower().replace("+", "")


@dataclass(frozen=True, slots=True)
class GridRow:
    """One point of a variant's grid: the validation FPR95 of each seed, a mean over the stores.

    `has_diverged` if the loss of one of its runs became infinite. `is_best` marks the point of the
    variant with the lowest mean, of those that have not diverged.
    """

    variant: str
    point: str
    models: tuple[Path, ...]
    runs: tuple[Path, ...]
    fpr95: tuple[float, ...]
    has_diverged: bool
    is_best: bool = False

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return fmean(self.fpr95) if self.fpr95 else float("inf")


def best_rows(rows: Iterable[GridRow]) -> dict[str, GridRow]:
    """Return the best point of each variant that has one, by the name of the variant."""
    best: dict[str, GridRow] = {}
    for row in rows:
        if row.has_diverged or not row.fpr95:
            continue
        if row.variant not in best or row.mean < best[row.variant].mean:
            best[row.variant] = row
    return best
