"""Check that training works: train each method briefly and compare its FPR95 with a known range."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from matchserve.models.handcrafted import HandcraftedDescriptor
from training.errors import RecipeError
from training.recipes.suggestions import unknown_name
from training.runs.directory import create_run
from training.runs.loop import train
from training.runs.recipe import Recipe, Source, recipe_from_table
from training.runs.report import read_log
from training.runs.sources import open_source
from training.runs.validation import ValidationSet

STEPS = 300
PAIRS = 4000
VALIDATION = "synthetic:12:1000"


@dataclass(frozen=True, slots=True)
class Case:
    """What to train for a method, and the range `band` that its FPR95 must be in.

    A method above the range did not learn; one below it has seen the validation patches.
    """

    loss: dict[str, object]
    optim: dict[str, object]
    band: tuple[float, float]
    sampler: dict[str, object]
    head: str = "unit"
    dim: int = 128


@dataclass(frozen=True, slots=True)
class Result:
    """FPR95 of one method, and of SIFT on the same pairs."""

    name: str
    fpr95: float
    sift: float
    band: tuple[float, float]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether FPR95 is in its range."""
        return self.band[0] <= self.fpr95 <= self.band[1]


_UNIFORM: dict[str, object] = {"name": "uniform"}
_SGD: dict[str, object] = {"schedule": "linear", "warmup": 0.05}

CASES: dict[str, Case] = {
    "hardnet": Case({"name": "hardnet"}, {**_SGD, "lr": 0.3}, (0.05, 0.23), _UNIFORM),
    "sdgm": Case(
        {
            "name": "sdgm",
            "ema": 0.2,
            "power_init": 0.0,
            "reset_powers": True,
            "warmup": 0.2,
            "relaxed": 0.25,
            "relaxed_angle": 1.0,
            "margin": 0.5,
        },
        {**_SGD, "lr": 0.3},
        (0.05, 0.23),
        _UNIFORM,
    ),
    "cdf": Case({"name": "cdf"}, {**_SGD, "lr": 0.3}, (0.05, 0.23), _UNIFORM),
    "cdf-binary": Case(
        {"name": "cdf"}, {**_SGD, "lr": 0.3}, (0.05, 0.35), _UNIFORM, head="binary", dim=256
    ),
    "adasample": Case(
        {"name": "adasample"},
        {**_SGD, "lr": 0.2, "momentum": 0.5},
        (0.05, 0.25),
        {"name": "adasample", "candidates": 4, "rate": 0.05, "start": 0.05},
    ),
    "stochastic": Case(
        {"name": "stochastic_siamese", "theta": 1.0},
        {"lr": 0.005, "schedule": "linear", "weight_decay": 0.0},
        (0.05, 0.40),
        _UNIFORM,
        head="linear",
    ),
}


def verify_all(names: Sequence[str]) -> list[Result]:
    """Train the named cases, or all of them if `names` is empty.

    Raises:
        RecipeError: there is no case of this name.
    """
    for name in names:
        if name not in CASES:
            raise RecipeError(unknown_name("method", name, CASES))
    with tempfile.TemporaryDirectory() as folder:
        return list(_results([n for n in CASES if not names or n in names], Path(folder)))


def recipe_of(name: str) -> Recipe:
    """Return the recipe of the case `name`."""
    case = CASES[name]
    table = {
        "name": f"verify-{name}",
        "seed": 3,
        "network": {
            "name": "patchify48",
            "head": case.head,
            "dim": case.dim,
            "dropout": 0.0,
        },
        "loss": case.loss,
        "sampler": case.sampler,
        "data": {
            "train": [{"path": "synthetic:11:4000"}],
            "validation": [{"path": VALIDATION}],
            "validation_pairs": PAIRS,
        },
        "optim": case.optim,
        "run": {"steps": STEPS, "batch": 128, "validate_every": STEPS, "device": "cpu"},
    }
    return recipe_from_table(table, f"verify {name}")


def _results(names: Sequence[str], folder: Path) -> Iterator[Result]:
    store = open_source(Source(path=VALIDATION), folder / "stores")
    sift = HandcraftedDescriptor("sift", store.spec)
    baseline = ValidationSet.of(store, PAIRS).fpr95(sift.describe_patches)
    for name in names:
        start = time.monotonic()
        run_dir = train(create_run(recipe_of(name), folder))
        figures = [v for line in read_log(run_dir) for k, v in line.items() if "fpr95/" in k]
        seconds = time.monotonic() - start
        yield Result(name, figures[-1], baseline, CASES[name].band, seconds)
