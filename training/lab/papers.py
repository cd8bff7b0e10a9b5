"""The numbers that the four papers print, in percent, and the recipes that should reach them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from training.errors import RecipeError
from training.recipes.suggestions import unknown_name

LIBERTY, NOTREDAME, YOSEMITE = SETS = ("liberty", "notredame", "yosemite")
# Training set and test set of the six columns, in the order of the papers' tables.
COLUMNS = (
    (NOTREDAME, LIBERTY),
    (YOSEMITE, LIBERTY),
    (LIBERTY, NOTREDAME),
    (YOSEMITE, NOTREDAME),
    (LIBERTY, YOSEMITE),
    (NOTREDAME, YOSEMITE),
)
TASKS = ("verification", "matching", "retrieval")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: the recipes to train one after the other, and what the paper prints.

    Every recipe after the first starts from the run before it. `printed` are the six columns of
    PhotoTour (FPR95) or the three tasks of HPatches (mAP). `trained_on` and `split` are for
    HPatches. `pairs` limits the training data to so many fixed pairs, unless it is 0. `note` says
    what is known to differ from the paper.
    """

    label: str
    recipes: tuple[str, ...]
    printed: tuple[float, ...]
    benchmark: Literal["phototour", "hpatches"] = "phototour"
    trained_on: Literal["liberty", "hpatches-a"] = "liberty"
    split: str = "a"
    overrides: tuple[str, ...] = ()
    pairs: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table of a paper, by its number there."""

    number: int
    title: str
    rows: tuple[Row, ...] = field(default_factory=tuple)


PAPERS: dict[str, tuple[PaperTable, ...]] = {
    "sdgm": (
        PaperTable(
            1,
            "SDGMNet, Table I: PhotoTour, FPR95 %",
            (
                Row(
                    "SDGMNet",
                    ("sdgm-paper", "sdgm-paper-finetune"),
                    (0.88, 1.41, 0.34, 0.46, 0.82, 0.69),
                    note="the last weights are scored; the authors' script keeps the best on the "
                    "test set",
                ),
            ),
        ),
    ),
    "cdf": (
        PaperTable(
            1,
            "Dynamic soft margin, Table 1: PhotoTour, FPR95 %",
            (
                Row("Ours+, 128 floats", ("cdf-paper",), (1.21, 2.01, 0.39, 0.68, 1.51, 1.29)),
                Row("Ours+, 256 bits", ("cdf-binary-paper",), (2.70, 4.01, 0.93, 1.44, 3.69, 2.98)),
            ),
        ),
        PaperTable(
            3,
            "Dynamic soft margin, Table 3: HPatches, split full, mAP %",
            (
                Row(
                    "dynamic soft margin, floats",
                    ("cdf-paper",),
                    (89.06, 53.25, 61.72),
                    benchmark="hpatches",
                    split="full",
                ),
            ),
        ),
    ),
    "adasample": (
        PaperTable(
            1,
            "AdaSample, Table 1: PhotoTour, FPR95 %",
            (Row("AdaSample+*", ("adasample-paper",), (1.25, 2.21, 0.40, 0.63, 1.40, 1.14)),),
        ),
        PaperTable(
            2,
            "AdaSample, Table 2: HPatches, mAP %",
            (
                Row(
                    "lambda 10, AHT",
                    ("adasample-paper",),
                    (94.78, 65.46, 83.98),
                    benchmark="hpatches",
                    trained_on="hpatches-a",
                ),
            ),
        ),
    ),
    "stochastic": (
        PaperTable(
            2,
            "Stochastic loss, Table 2: HPatches, mAP %",
            (
                Row(
                    "stochastic Siamese, theta 2",
                    ("stochastic-30k",),
                    (81.12, 19.67, 41.99),
                    benchmark="hpatches",
                    trained_on="hpatches-a",
                    pairs=30_000,
                    note="the matching pairs are fixed, the others are drawn anew at every step",
                ),
            ),
        ),
    ),
}


def find_tables(paper: str, number: int | None = None) -> tuple[PaperTable, ...]:
    """Return the tables of a paper, or the one with that number.

    Raises:
        RecipeError: there is no such paper, or no such table of it here.
    """
    if paper not in PAPERS:
        raise RecipeError(unknown_name("paper", paper, PAPERS))
    tables = PAPERS[paper]
    if number is None:
        return tables
    chosen = tuple(table for table in tables if table.number == number)
    if not chosen:
        known = ", ".join(str(table.number) for table in tables)
        raise RecipeError(f"--table {number}: of {paper}, these tables are known: {known}")
    return chosen
