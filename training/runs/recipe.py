"""Recipe: everything that decides what a training run does.

A recipe is a TOML file with the tables `[network]`, `[loss]`, `[sampler]`, `[data]`, `[augment]`,
`[optim]` and `[run]`; each is a model of its own, defined next to the code that uses it. Unknown
keys, wrong types, values out of range and impossible combinations are refused with the place in the
file. `recipe_id` is part of the name of the run, so training the same recipe again resumes its run,
and a changed recipe gets a new one. It leaves out how a run is computed and logged (`EXECUTION`).

Losses, samplers and networks of other packages are known here too: see `training.runs.plugins`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tomli_w
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from training.methods import METHODS, SAMPLERS
from training.methods.samplers import UniformOptions
from training.methods.sdgm import SdgmOptions
from training.networks import NetworkOptions
from training.recipes.checking import validate
from training.recipes.options import (
    AtLeastTwo,
    NonNegative,
    NonNegativeInt,
    Options,
    Positive,
    PositiveInt,
    option_problem,
)
from training.recipes.reading import RecipeTable, read_recipe_table, recipe_path
from training.runs.augment import AugmentOptions
from training.runs.plugins import load_plugins, union_of
from training.runs.schedule import OptimOptions

load_plugins()
if TYPE_CHECKING:
    from training.methods import AnySamplerOptions, LossOptions
else:
    LossOptions = union_of(METHODS)
    AnySamplerOptions = union_of(SAMPLERS)

# Keys of [run] that do not decide what is learned: the same run may be continued with others.
EXECUTION = ("threads", "workers", "device", "compile", "log_every", "keep_every")
# Keys that older recipes do not have. Where they have no effect they are left out of the ID, so
# that it is still the one of older runs.
_ADDED_TO_RUN = ("keep_every", "workers")
_ADDED_TO_AUGMENT = ("invert", "curve", "shading", "blur")
_ADDED_TO_SOURCES = ("labels",)
NAME_PATTERN = r"^[^./\\\x00-\x1f][^/\x00-\x1f]{0,99}$"
"""A name is part of the name of the run's directory, so it must not lead elsewhere."""

Strings = Annotated[tuple[str, ...], Field(strict=False)]


class Source(Options):
    """A patch store: a directory, or `synthetic:SEED:CLASSES`, which is generated when needed.

    `scenes` uses only these scenes, `without_scenes` leaves some out; both may contain patterns
    such as `night/*`. `labels` uses only classes of these labels. `weight` is the relative share
    of the store in a training batch.
    """

    path: str
    weight: Positive = 1.0
    scenes: Strings = ()
    without_scenes: Strings = ()
    labels: Strings = ()


class DataOptions(Options):
    """`[data]`: the stores `[[data.train]]` and `[[data.validation]]`.

    `validation_pairs` is the number of pairs drawn from each validation store. A store with an
    official list of pairs (PhotoTour) is validated on that list instead.
    """

    train: Annotated[tuple[Source, ...], Field(strict=False)] = ()
    validation: Annotated[tuple[Source, ...], Field(strict=False)] = ()
    validation_pairs: AtLeastTwo = 5000


class RunOptions(Options):
    """`[run]`: length and batch size, how often to log, validate and save, and how to compute.

    `batch` is a number of pairs; `log_every` and `validate_every` are steps. A checkpoint is saved
    every `checkpoint_minutes`, and also every `checkpoint_steps` unless that is 0; only the last
    two are kept. The weights of every `keep_every` steps are kept for good, unless that is 0, and
    so are those with the best validation. `threads = 0` keeps torch's default number of CPU
    threads; `workers` threads prepare the next batches. `amp` is mixed precision on CUDA: bfloat16,
    or float16 with a scaled loss on devices without bfloat16.
    """

    steps: PositiveInt = 1000
    batch: AtLeastTwo = 256
    log_every: PositiveInt = 20
    validate_every: PositiveInt = 500
    checkpoint_minutes: NonNegative = 5.0
    checkpoint_steps: NonNegativeInt = 0
    keep_every: NonNegativeInt = 0
    threads: NonNegativeInt = 0
    workers: PositiveInt = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    channels_last: bool = True
    compile: bool = False
    amp: bool = False


class Recipe(Options):
    """A whole training run.

    `init_from` is a run, a weights file or a model directory to start from, for fine-tuning.
    """

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    seed: NonNegativeInt = 0
    init_from: str = ""
    network: NetworkOptions = NetworkOptions()
    loss: LossOptions = SdgmOptions()
    sampler: AnySamplerOptions = UniformOptions()
    data: DataOptions = DataOptions()
    augment: AugmentOptions = AugmentOptions()
    optim: OptimOptions = OptimOptions()
    run: RunOptions = RunOptions()

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        heads = METHODS[self.loss.name].heads
        if self.network.head not in heads:
            raise option_problem(
                "network.head", f"the loss {self.loss.name} needs the head {' or '.join(heads)}"
            )
        try:
            self.sampler.check_against(self.loss, self.network.head)
        except PydanticCustomError as error:
            context = error.context or {}
            raise option_problem(f"sampler.{context['key']}", str(context["message"])) from error
        return self

    @property
    def recipe_id(self) -> str:
        """Twelve hexadecimal digits of a hash of the content, without the keys `EXECUTION`."""
        return identity(self.model_dump())

    @property
    def full_id(self) -> str:
        """The ID that runs had before execution options were left out of it."""
        return _digits(_without_added(self.model_dump()))

    @property
    def run_name(self) -> str:
        """Name of the run directory, NAME-ID."""
        return f"{self.name}-{self.recipe_id}"

    def to_toml(self) -> str:
        """Return the complete recipe with all defaults; loading it gives an equal recipe."""
        return tomli_w.dumps(self.model_dump())


def identity(values: Mapping[str, Any]) -> str:
    """Return the `recipe_id` of a complete recipe given as plain values."""
    defaults = {key: RunOptions.model_fields[key].default for key in EXECUTION}
    return _digits(_without_added({**values, "run": {**values["run"], **defaults}}))


def _without_added(values: Mapping[str, Any]) -> dict[str, Any]:
    run = {key: value for key, value in values["run"].items() if key not in _ADDED_TO_RUN}
    data = dict(values["data"])
    for part in ("train", "validation"):
        data[part] = [_without_unused(source, _ADDED_TO_SOURCES) for source in data[part]]
    augment = _without_unused(values["augment"], _ADDED_TO_AUGMENT)
    return {**values, "run": run, "data": data, "augment": augment}


def _without_unused(values: Mapping[str, Any], added: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value or key not in added}


def _digits(values: Mapping[str, Any]) -> str:
    canonical = json.dumps(values, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def load_recipe(
    name_or_path: str, overrides: Sequence[str] = (), *, folder: Path = Path()
) -> Recipe:
    """Load a shipped recipe by name, or a .toml file relative to `folder`, and apply overrides.

    Raises:
        RecipeError: there is no such recipe, or it is not valid.
    """
    return validate(Recipe, read_recipe_table(recipe_path(name_or_path, folder), overrides))


def recipe_from_table(values: Mapping[str, Any], title: str) -> Recipe:
    """Build a recipe from parsed TOML; `title` names it in errors.

    Raises:
        RecipeError: the recipe is not valid.
    """
    return validate(Recipe, RecipeTable(dict(values), title=title))
