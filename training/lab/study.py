"""A study: runs of one recipe that differ in a few values, each trained and exported.

The file names a recipe and its variants. What comes out is a model directory for each, which
`evaluate` and `compare` take; a variant that is finished is not trained again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from matchserve.errors import MatchServeError
from matchserve.models.card import is_model_name, read_card
from matchserve.models.onnx_model import OnnxDescriptor
from training.errors import RecipeError
from training.export.export import (
    Trained,
    compare,
    to_onnx,
    write_model,
)
from training.networks.cost import mac_count
from training.runs.loop import train
from training.runs.recipe import Recipe, load_recipe
from training.runs.run import create_run
from training.runs.toml import nearest, parse_dataclass, read_toml

STUDIES = files("training") / "studies"


@dataclass(frozen=True, slots=True)
class Variant:
    """One line of a study: overrides of the recipe, and the seeds to train it with.

    `start` names a variant before it, whose run of the same seed it starts from.
    """

    name: str
    set: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    start: str = ""


@dataclass(frozen=True, slots=True)
class Study:
    """A recipe and its variants."""

    recipe: str
    variants: tuple[Variant, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of a study became."""

    model: Path
    steps: int
    batch: int
    mmac: float
    seconds: float
    """Time spent on it now: 0 for one that was finished before."""
    fpr95: dict[str, float]


def load_study(name_or_path: str) -> Study:
    """Load a study that ships here by name, or any by path.

    Raises:
        RecipeError: there is none, it cannot be understood, or one of its runs cannot be made.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        known = [e.name.removesuffix(".toml") for e in STUDIES.iterdir() if e.name[-5:] == ".toml"]
        if name_or_path not in known:
            raise RecipeError(f"no study {name_or_path!r}{nearest(name_or_path, known)}")
        path = Path(str(STUDIES / f"{name_or_path}.toml"))
    study = parse_dataclass(Study, read_toml(path), where=path.name, choices={})
    try:
        plan(study)
    except RecipeError as error:
        raise RecipeError(f"{path.name}: {error.message}") from error
    return study


def plan(study: Study) -> dict[str, Recipe]:
    """The recipe of every run of a study, by the name of the model it becomes, in order.

    Raises:
        RecipeError: with the variant that is at fault.
    """
    if not study.variants:
        raise RecipeError("expected at least one variant")
    planned: dict[str, Recipe] = {}
    before: dict[str, dict[int, Recipe]] = {}
    for variant in study.variants:
        _check_variant(variant, before)
        recipes = {seed: _recipe(study, variant, seed, before) for seed in variant.seeds}
        before[variant.name] = recipes
        for seed, recipe in recipes.items():
            model = variant.name if seed == variant.seeds[0] else f"{variant.name}-seed{seed}"
            if model in planned or not is_model_name(model):
                problem = "is there twice" if model in planned else "is no model name"
                raise RecipeError(f"{variant.name}: the model {model!r} {problem}")
            planned[model] = recipe
    return planned


def run_study(study: Study, out: Path) -> Iterator[Outcome]:
    """Train and export every variant under `out`, in order; yield each as it is done.

    Raises:
        RecipeError: a model that is there did not come from the run that it is named after.
    """
    planned = {out / "models" / model: recipe for model, recipe in plan(study).items()}
    for model, recipe in planned.items():
        if model.exists() and not _is_made_by(out / "runs" / _run_name(recipe), model):
            raise RecipeError(
                f"{model}: did not come from the run {_run_name(recipe)}; "
                f"remove it, or choose another --out"
            )
    for model, recipe in planned.items():
        yield _outcome(create_run(recipe, out / "runs"), model)


def _check_variant(variant: Variant, before: Mapping[str, Mapping[int, Recipe]]) -> None:
    if not variant.seeds or len(set(variant.seeds)) < len(variant.seeds):
        problem = "has a seed twice" if variant.seeds else "has no seed"
        raise RecipeError(f"{variant.name}: {problem}")
    if not variant.start:
        return
    if variant.start not in before:
        raise RecipeError(
            f"{variant.name}: no variant {variant.start!r} before it"
            f"{nearest(variant.start, before)}"
        )
    for seed in variant.seeds:
        if seed not in before[variant.start]:
            raise RecipeError(f"{variant.name}: {variant.start} has no seed {seed}")


def _recipe(
    study: Study, variant: Variant, seed: int, before: Mapping[str, Mapping[int, Recipe]]
) -> Recipe:
    changes = [*variant.set, f'name="{variant.name}"', f"seed={seed}"]
    if variant.start:
        # The bare name, which is looked for beside the run: a path would make another recipe of
        # the same study elsewhere.
        changes.append(f'init_from="{_run_name(before[variant.start][seed])}"')
    try:
        return load_recipe(study.recipe, changes)
    except RecipeError as error:
        raise RecipeError(f"{variant.name}: {error.message}") from error


def _run_name(recipe: Recipe) -> str:
    return f"{recipe.name}-{recipe.recipe_id}"


def _is_made_by(run_dir: Path, model: Path) -> bool:
    """Whether the model gives what the finished run's network gives.

    A card tells too little: its recipe has only the last part of paths.
    """
    if not (run_dir / "finished").exists():
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
