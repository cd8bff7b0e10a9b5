"""Run a study: train and export variants of one recipe, to compare them.

A study is a TOML file with a recipe (a shipped name, or a path relative to the study) and its
variants, each with its seeds and its grid of values, such as learning rates. Each run becomes a
model directory for `evaluate` and `compare`. A run that is already finished is not trained again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from matchserve.errors import MatchServeError
from matchserve.models.card import is_model_name, read_card
from matchserve.models.onnx_model import OnnxDescriptor
from training.errors import NonFiniteLoss, RecipeError
from training.export.export import write_model
from training.export.graph import to_onnx
from training.export.parity import compare
from training.export.trained import Trained
from training.lab.grid import Grid, Point, grid_points, label
from training.networks.cost import mac_count
from training.recipes.checking import validate
from training.recipes.options import Options
from training.recipes.reading import RecipeTable, read_toml
from training.recipes.suggestions import suggestion
from training.runs.directory import FINISHED_FILE, create_run, read_recipe
from training.runs.loop import train
from training.runs.recipe import Recipe, load_recipe


class Variant(Options):
    """A variant: overrides of the recipe, the seeds to train it with, and a grid.

    `grid` has a list of values for each of some keys; every combination is trained with every seed.
    Seeds and grid are those of the study unless given. `start` names an earlier variant without a
    grid; each run starts from that variant's run with the same seed.
    """

    name: str
    set: Annotated[tuple[str, ...], Field(strict=False)] = ()
    seeds: Annotated[tuple[int, ...], Field(strict=False)] | None = None
    grid: Grid | None = None
    start: str = ""


class Study(Options):
    """A recipe and its variants.

    `set` are overrides for all variants. `seeds` and `grid` are those of the variants that have
    none of their own. `baseline` is the variant that the others are compared with; the first one if
    not given.
    """

    recipe: str
    set: Annotated[tuple[str, ...], Field(strict=False)] = ()
    baseline: str = ""
    seeds: Annotated[tuple[int, ...], Field(strict=False)] = (0,)
    grid: Grid = Field(default_factory=dict)
    variants: Annotated[tuple[Variant, ...], Field(strict=False)] = ()


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a study: the name of its model, its variant, its point of the grid and recipe."""

    model: str
    variant: str
    point: str
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run of a study; `has_diverged` if there is no model, only a bad loss."""

    model: Path
    run: Path
    steps: int
    batch: int
    mmac: float
    seconds: float
    """Training time; 0 if the run was already finished."""
    fpr95: dict[str, float]
    variant: str = ""
    point: str = ""
    has_diverged: bool = False

    @property
    def line(self) -> str:
        """One line for the user: model, size, length, time and validation FPR95."""
        if self.has_diverged:
            return f"{self.model.name}: the loss is not finite"
        rates = ", ".join(f"{store} {100 * rate:.2f} %" for store, rate in self.fpr95.items())
        took = f"{self.seconds / 60:.1f} min" if self.seconds else "finished before"
        return (
            f"{self.model.name}: {self.mmac:.2f} MMAC, {self.steps} steps of {self.batch} pairs, "
            f"{took}, FPR95 {rates}"
        )


@dataclass(frozen=True, slots=True)
class LoadedStudy:
    """A study, and the folder of its file, which its recipe's path is relative to."""

    study: Study
    folder: Path


def load_study(path: Path) -> LoadedStudy:
    """Load and check the study in the .toml file `path`.

    Raises:
        RecipeError: the file cannot be read or is not valid, or one of its runs is not.
    """
    if path.suffix != ".toml":
        raise RecipeError(
            f"{path}: expected the path of a .toml file; the studies of this project are in "
            "docs/research/studies of the repository"
        )
    values, file = read_toml(path)
    loaded = LoadedStudy(validate(Study, RecipeTable(values, (file,))), path.parent)
    try:
        plan(loaded)
    except RecipeError as error:
        raise RecipeError(f"{path.name}: {error.message}") from error
    return loaded


def plan(loaded: LoadedStudy) -> list[PlannedRun]:
    """Return every run of a study in order.

    Raises:
        RecipeError: a variant is not valid; the message names it.
    """
    study = loaded.study
    if not study.variants:
        raise RecipeError("expected at least one variant")
    names = [variant.name for variant in study.variants]
    if study.baseline and study.baseline not in names:
        hint = suggestion(study.baseline, names)
        raise RecipeError(f"baseline: no variant {study.baseline!r}{hint}")
    planned: dict[str, PlannedRun] = {}
    earlier: dict[str, dict[int, Recipe]] = {}
    for variant in study.variants:
        seeds = study.seeds if variant.seeds is None else variant.seeds
        grid = study.grid if variant.grid is None else variant.grid
        _check_variant(variant, seeds, earlier)
        for point in grid_points(grid):
            name = "-".join(filter(None, [variant.name, label(point)]))
            recipes = {seed: _recipe(loaded, variant, name, point, seed, earlier) for seed in seeds}
            for seed, recipe in recipes.items():
                model = name if seed == seeds[0] else f"{name}-seed{seed}"
                if model in planned or not is_model_name(model):
                    problem = "occurs twice" if model in planned else "is not a legal model name"
                    raise RecipeError(f"{variant.name}: the model {model!r} {problem}")
                planned[model] = PlannedRun(model, variant.name, label(point), recipe)
            if not point:
                earlier[variant.name] = recipes
    return list(planned.values())


def run_study(loaded: LoadedStudy, out: Path) -> Iterator[Outcome]:
    """Train every variant into `out`, in order; yield each outcome when it is done.

    Variants without a grid are exported too. Exporting takes as long as many short runs, so only
    the chosen point of a grid is exported, by `export_model`.

    Raises:
        RecipeError: a model in `out` was not exported from the run of its variant.
    """
    planned = plan(loaded)
    for run in planned:
        model = out / "models" / run.model
        if model.exists() and not _is_made_by(out / "runs" / run.recipe.run_name, model):
            raise RecipeError(
                f"{model}: was not exported from the run {run.recipe.run_name}; "
                f"remove it, or choose another --out"
            )
    for run in planned:
        outcome = _outcome(create_run(run.recipe, out / "runs"), out / "models" / run.model)
        if not run.point and not outcome.has_diverged:
            export_model(outcome.run, outcome.model)
        yield replace(outcome, variant=run.variant, point=run.point)


def _check_variant(
    variant: Variant, seeds: Sequence[int], earlier: Mapping[str, Mapping[int, Recipe]]
) -> None:
    if not seeds or len(set(seeds)) < len(seeds):
        problem = "the same seed occurs twice" if seeds else "expected at least one seed"
        raise RecipeError(f"{variant.name}: {problem}")
    if not variant.start:
        return
    if variant.start not in earlier:
        raise RecipeError(
            f"{variant.name}: no earlier variant {variant.start!r}"
            f"{suggestion(variant.start, earlier)}"
        )
    for seed in seeds:
        if seed not in earlier[variant.start]:
            raise RecipeError(f"{variant.name}: {variant.start} is not trained with seed {seed}")


def _recipe(
    loaded: LoadedStudy,
    variant: Variant,
    name: str,
    point: Point,
    seed: int,
    earlier: Mapping[str, Mapping[int, Recipe]],
) -> Recipe:
    values = [f"{key}={json.dumps(value)}" for key, value in point.items()]
    changes = [*loaded.study.set, *variant.set, *values, f'name="{name}"', f"seed={seed}"]
    if variant.start:
        # Only the name, which is found beside the run: a path would change the recipe when the
        # same study is run in another folder.
        changes.append(f'init_from="{earlier[variant.start][seed].run_name}"')
    try:
        return load_recipe(loaded.study.recipe, changes, folder=loaded.folder)
    except RecipeError as error:
        raise RecipeError(f"{variant.name}: {error.message}") from error


def _is_made_by(run_dir: Path, model: Path) -> bool:
    """Return whether the model gives the same descriptors as the network of the finished run.

    The card is not enough to tell: the paths in its recipe are shortened.
    """
    if not (run_dir / FINISHED_FILE).exists():
        return False
    try:
        trained, card = Trained.load(run_dir), read_card(model)
        kind = "binary" if trained.net.head == "binary" else "float"
        if (card.patch, card.kind, card.dim) != (trained.spec, kind, trained.net.dim):
            return False
        compare(trained, OnnxDescriptor(model, provider="cpu"))
    except MatchServeError:
        return False
    return True


def _outcome(run_dir: Path, model: Path) -> Outcome:
    began = time.monotonic()
    is_new = not (run_dir / FINISHED_FILE).exists()
    if is_new:
        try:
            train(run_dir)
        except NonFiniteLoss:
            # A grid of learning rates may well contain one that is too large.
            options, seconds = read_recipe(run_dir).run, time.monotonic() - began
            return Outcome(
                model, run_dir, options.steps, options.batch, 0.0, seconds, {}, has_diverged=True
            )
    seconds = time.monotonic() - began if is_new else 0.0
    trained = Trained.load(run_dir)
    options = trained.recipe.run
    return Outcome(
        model,
        run_dir,
        options.steps,
        options.batch,
        mac_count(trained.net) / 1e6,
        seconds,
        trained.metrics.get("validation_fpr95", {}),
    )


def export_model(run_dir: Path, model: Path) -> None:
    """Export a finished run of a study to the directory `model`, unless that is done already."""
    if not model.exists():
        trained = Trained.load(run_dir)
        write_model(trained, to_onnx(trained.net, trained.spec), model)
