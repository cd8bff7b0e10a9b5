"""Recipe: everything that decides what a training run does, as frozen data.

A recipe is a TOML file. Unknown keys, wrong types and impossible combinations are refused with the
file, the key and the nearest legal name. `recipe_id` names the run, so the same recipe resumes and
another one never mixes with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from training.errors import RecipeError
from training.methods import METHODS
from training.methods.adasample import AdaSampleOptions
from training.methods.samplers import (
    SAMPLERS,
    AdaSampleSamplerOptions,
    SamplerOptions,
    UniformOptions,
)
from training.methods.sdgm import SdgmOptions
from training.networks import NETWORKS, NetworkOptions
from training.runs.augment import AugmentOptions
from training.runs.ranges import (
    Count,
    CountOrNone,
    NotNegative,
    Positive,
    Range,
    range_problems,
)
from training.runs.schedule import OptimOptions
from training.runs.toml import (
    apply_overrides,
    nearest,
    parse_dataclass,
    read_toml,
    to_toml,
)

RECIPES = resources.files("training") / "recipes"


@dataclass(frozen=True, slots=True)
class Source:
    """A patch store to read: a directory, or `synthetic:SEED:CLASSES` which is made when needed.

    `scenes` keeps only those scenes, `without_scenes` drops some; `weight` is the share of a
    training batch.
    """

    path: str
    weight: Positive = 1.0
    scenes: tuple[str, ...] = ()
    without_scenes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DataOptions:
    """`[data]`: `[[data.train]]` and `[[data.validation]]` stores, and how many pairs validate."""

    train: tuple[Source, ...] = ()
    validation: tuple[Source, ...] = ()
    validation_pairs: Annotated[int, Range(2)] = 5000


@dataclass(frozen=True, slots=True)
class RunOptions:
    """`[run]`: length, batch in pairs, how often to log, validate and save, how to execute.

    `checkpoint_steps` saves every so many steps beside the clock of `checkpoint_minutes`;
    `threads = 0` leaves torch's own choice. `amp` is bfloat16 on CUDA.
    """

    steps: Count = 1000
    batch: Annotated[int, Range(2)] = 256
    log_every: Count = 20
    validate_every: Count = 500
    checkpoint_minutes: NotNegative = 5.0
    checkpoint_steps: CountOrNone = 0
    threads: CountOrNone = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    channels_last: bool = True
    compile: bool = False
    amp: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """A whole training run. `init_from` is a run or weights to start from, for fine-tuning."""

    name: str
    seed: CountOrNone = 0
    init_from: str = ""
    network: NetworkOptions = field(default_factory=NetworkOptions)
    loss: Any = field(default_factory=SdgmOptions)
    sampler: SamplerOptions = field(default_factory=UniformOptions)
    data: DataOptions = field(default_factory=DataOptions)
    augment: AugmentOptions = field(default_factory=AugmentOptions)
    optim: OptimOptions = field(default_factory=OptimOptions)
    run: RunOptions = field(default_factory=RunOptions)

    @property
    def recipe_id(self) -> str:
        """Twelve hexadecimal digits of the whole content."""
        canonical = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def to_toml(self) -> str:
        """Return the complete recipe, defaults included; loading it gives an equal recipe."""
        return to_toml(asdict(self))


def available() -> dict[str, str]:
    """Return the recipes that ship here: name to its first comment line."""
    found = {}
    for entry in sorted(RECIPES.iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".toml"):
            first = entry.read_text(encoding="utf-8").splitlines()[0]
            found[entry.name.removesuffix(".toml")] = first.lstrip("# ")
    return found


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """Load a shipped recipe by name or any by path, and put `key.path=value` overrides on it.

    Raises:
        RecipeError: there is none, or it cannot be understood.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        if name_or_path not in available():
            raise RecipeError(
                f"no recipe {name_or_path!r}{nearest(name_or_path, available())}; "
                f"`python -m training recipes` lists them"
            )
        path = Path(str(RECIPES / f"{name_or_path}.toml"))
    table = read_toml(path)
    table.setdefault("name", path.stem)
    changed = apply_overrides(table, overrides, named=("loss", "sampler"))
    return recipe_from_table(changed, path.name)


def recipe_from_table(table: Mapping[str, Any], where: str) -> Recipe:
    """Build a recipe from parsed TOML and check it; `where` names the file in errors."""
    recipe = parse_recipe(table, where)
    check_recipe(recipe, where)
    return recipe


def parse_recipe(table: Mapping[str, Any], where: str) -> Recipe:
    """Build a recipe from parsed TOML: known keys of the right types, in any combination."""
    choices = {
        "loss": {name: method.options for name, method in METHODS.items()},
        "sampler": {name: entry.options for name, entry in SAMPLERS.items()},
    }
    return parse_dataclass(Recipe, table, where=where, choices=choices)


def check_recipe(recipe: Recipe, where: str) -> None:
    """Refuse values out of range and combinations that cannot train.

    Raises:
        RecipeError: with the key of the first of them.
    """
    for key, problem in _problems(recipe):
        raise RecipeError(f"{where}: {key}: {problem}")


def _problems(recipe: Recipe) -> Iterator[tuple[str, str]]:
    yield from range_problems(recipe)
    name, head = recipe.network.name, recipe.network.head
    if name not in NETWORKS:
        yield "network.name", f"no network {name!r}{nearest(name, NETWORKS)}"
    heads = METHODS[recipe.loss.name].heads
    if head not in heads:
        yield "network.head", f"the loss {recipe.loss.name} takes {' or '.join(heads)}"
    if head == "binary" and (recipe.network.dim % 8 or recipe.sampler.name == "adasample"):
        yield "network.head", "binary needs a dim divisible by 8 and the uniform sampler"
    if getattr(recipe.loss, "bins", 0) == 1:
        yield "loss.bins", "expected 0 or at least 2, found 1"
    yield from _milestone_problems(recipe.optim)
    if isinstance(recipe.sampler, AdaSampleSamplerOptions):
        yield from _adasample_problems(recipe.sampler, recipe)


def _milestone_problems(optim: OptimOptions) -> Iterator[tuple[str, str]]:
    if optim.schedule == "milestones" and not optim.milestones:
        yield "optim.milestones", "expected at least one for schedule = 'milestones'"
    if not all(0.0 <= m <= 1.0 for m in optim.milestones):
        yield "optim.milestones", f"expected fractions of the run, found {optim.milestones}"


def _adasample_problems(
    sampler: AdaSampleSamplerOptions, recipe: Recipe
) -> Iterator[tuple[str, str]]:
    if recipe.network.head == "linear" and sampler.metric == "angle":
        yield "sampler.metric", "rows of a linear head have no angle; set it to 'euclidean'"
    loss = recipe.loss
    if isinstance(loss, AdaSampleOptions):
        # The average loss, which the exponent is made of, is that of the loss being minimised.
        for key in ("metric", "margin"):
            ours, theirs = getattr(sampler, key), getattr(loss, key)
            if ours != theirs:
                yield f"sampler.{key}", f"{ours!r} differs from loss.{key}, which is {theirs!r}"
