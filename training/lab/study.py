"""Run a study: train and export variants of one recipe, to compare them.

A study is a TOML file with a recipe (a shipped name, or a path relative to the study) and its
variants. Each variant becomes a model directory for `evaluate` and `compare`. A variant that is
already finished is not trained again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from matchserve.errors import MatchServeError
from matchserve.models.card import is_model_name, read_card
from matchserve.models.onnx_model import OnnxDescriptor
from training.errors import RecipeError
from training.export.export import write_model
from training.export.graph import to_onnx
from training.export.parity import compare
from training.export.trained import Trained
from training.networks.cost import mac_count
from training.recipes.checking import validate
from training.recipes.options import Options
from training.recipes.reading import RecipeTable, read_toml
from training.recipes.suggestions import suggestion
from training.runs.directory import FINISHED_FILE, create_run
from training.runs.loop import train
from training.runs.recipe import Recipe, load_recipe


class Variant(Options):
    """A variant: overrides of the recipe, and the seeds to train it with.

    `start` names an earlier variant; each run starts from that variant's run with the same seed.
    """

    name: str
    set: Annotated[tuple[str, ...], Field(strict=False)] = ()
    seeds: Annotated[tuple[int, ...], Field(strict=False)] = (0,)
    start: str = ""


class Study(Options):
    """A recipe and its variants."""

    recipe: str
    variants: Annotated[tuple[Variant, ...], Field(strict=False)] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run of a study."""

    model: Path
    steps: int
    batch: int
    mmac: float
    seconds: float
    """Training time; 0 if the run was already finished."""
    fpr95: dict[str, float]


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


def plan(loaded: LoadedStudy) -> dict[str, Recipe]:
    """Return the recipe of every run of a study, by the name of its model, in order.

    Raises:
        RecipeError: a variant is not valid; the message names it.
    """
    if not loaded.study.variants:
        raise RecipeError("expected at least one variant")
    planned: dict[str, Recipe] = {}
    earlier: dict[str, dict[int, Recipe]] = {}
    for variant in loaded.study.variants:
        _check_variant(variant, earlier)
        recipes = {seed: _recipe(loaded, variant, seed, earlier) for seed in variant.seeds}
        earlier[variant.name] = recipes
        for seed, recipe in recipes.items():
            model = variant.name if seed == variant.seeds[0] else f"{variant.name}-seed{seed}"
            if model in planned or not is_model_name(model):
                problem = "occurs twice" if model in planned else "is not a legal model name"
                raise RecipeError(f"{variant.name}: the model {model!r} {problem}")
            planned[model] = recipe
    return planned


def run_study(loaded: LoadedStudy, out: Path) -> Iterator[Outcome]:
    """Train and export every variant into `out`, in order; yield each outcome when it is done.

    Raises:
        RecipeError: a model in `out` was not exported from the run of its variant.
    """
    planned = {out / "models" / model: recipe for model, recipe in plan(loaded).items()}
    for model, recipe in planned.items():
        if model.exists() and not _is_made_by(out / "runs" / recipe.run_name, model):
            raise RecipeError(
                f"{model}: was not exported from the run {recipe.run_name}; "
                f"remove it, or choose another --out"
            )
    for model, recipe in planned.items():
        yield _outcome(create_run(recipe, out / "runs"), model)


def _check_variant(variant: Variant, earlier: Mapping[str, Mapping[int, Recipe]]) -> None:
    if not variant.seeds or len(set(variant.seeds)) < len(variant.seeds):
        problem = "the same seed occurs twice" if variant.seeds else "expected at least one seed"
        raise RecipeError(f"{variant.name}: {problem}")
    if not variant.start:
        return
    if variant.start not in earlier:
        raise RecipeError(
            f"{variant.name}: no earlier variant {variant.start!r}"
            f"{suggestion(variant.start, earlier)}"
        )
    for seed in variant.seeds:
        if seed not in earlier[variant.start]:
            raise RecipeError(f"{variant.name}: {variant.start} is not trained with seed {seed}")


def _recipe(
    loaded: LoadedStudy, variant: Variant, seed: int, earlier: Mapping[str, Mapping[int, Recipe]]
) -> Recipe:
    changes = [*variant.set, f'name="{variant.name}"', f"seed={seed}"]
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
    is_new = not model.exists()
    if is_new:
        train(run_dir)
    seconds = time.monotonic() - began if is_new else 0.0
    trained = Trained.load(run_dir)
    if is_new:
        write_model(trained, to_onnx(trained.net, trained.spec), model)
    options = trained.recipe.run
    return Outcome(
        model,
        options.steps,
        options.batch,
        mac_count(trained.net) / 1e6,
        seconds,
        trained.metrics.get("validation_fpr95", {}),
    )
