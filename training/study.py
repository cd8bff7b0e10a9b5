"""A study: runs of one recipe that differ in a few values, each trained and exported.

The file names a recipe and its variants. What comes out is a model directory for each, which
`evaluate` and `compare` take; a variant that is finished is not trained again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from training.errors import RecipeError
from training.export import Trained, to_onnx, write_model
from training.loop import train
from training.networks.cost import mac_count
from training.recipe import load_recipe
from training.run import create_run
from training.toml import nearest, parse_dataclass, read_toml

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
        RecipeError: there is none, it cannot be understood, or a variant starts from no other.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        known = [e.name.removesuffix(".toml") for e in STUDIES.iterdir() if e.name[-5:] == ".toml"]
        if name_or_path not in known:
            raise RecipeError(f"no study {name_or_path!r}{nearest(name_or_path, known)}")
        path = Path(str(STUDIES / f"{name_or_path}.toml"))
    study = parse_dataclass(Study, read_toml(path), where=path.name, choices={})
    before: set[str] = set()
    for variant in study.variants:
        if variant.start and variant.start not in before:
            raise RecipeError(
                f"{path.name}: {variant.name}: no variant {variant.start!r} before it"
                f"{nearest(variant.start, before)}"
            )
        if variant.name in before or not variant.seeds:
            raise RecipeError(f"{path.name}: {variant.name}: is there twice, or has no seed")
        before.add(variant.name)
    return study


def run_study(study: Study, out: Path) -> Iterator[Outcome]:
    """Train and export every variant under `out`, in order; yield each as it is done."""
    runs: dict[tuple[str, int], Path] = {}
    for variant in study.variants:
        for seed in variant.seeds:
            changes = [*variant.set, f'name="{variant.name}"', f"seed={seed}"]
            if variant.start:
                start = runs.get((variant.start, seed))
                if start is None:
                    raise RecipeError(f"{variant.name}: {variant.start} has no seed {seed}")
                changes.append(f'init_from="{start}"')
            run_dir = create_run(load_recipe(study.recipe, changes), out / "runs")
            runs[variant.name, seed] = run_dir
            is_first = seed == variant.seeds[0]
            model = variant.name if is_first else f"{variant.name}-seed{seed}"
            yield _outcome(run_dir, out / "models" / model)


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
