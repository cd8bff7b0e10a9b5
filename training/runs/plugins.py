"""Losses, samplers and networks of other packages, found by entry points.

    [project.entry-points."matchserve.training.losses"]
    my_loss = "my_package:METHOD"           # a training.methods.Method
    [project.entry-points."matchserve.training.samplers"]
    my_sampler = "my_package:SAMPLER"       # a training.methods.samplers.SamplerEntry
    [project.entry-points."matchserve.training.networks"]
    my_network = "my_package:build"         # a training.networks.Builder

The name on the left is the `name` in a recipe, and the default of `name` in the options class.
docs/guides/plug-ins.md has an example.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from training.errors import RecipeError
from training.methods import METHODS, SAMPLERS
from training.methods.contract import Method
from training.methods.samplers import SamplerEntry
from training.networks import NETWORKS
from training.recipes.options import Options

GROUP = "matchserve.training"


def load_plugins() -> None:
    """Add the losses, samplers and networks of installed packages to the registries.

    Raises:
        RecipeError: a plug-in cannot be loaded, is of the wrong kind, or has a name that is taken.
    """
    for kind, registry in _REGISTRIES.items():
        for entry in entry_points(group=f"{GROUP}.{kind}"):
            loaded = _load(entry, kind)
            if registry.get(entry.name, loaded) is not loaded:
                raise RecipeError(f"{_title(entry, kind)}: the name {entry.name!r} is taken")
            registry[entry.name] = loaded


def plugin_code(names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of the code of each plug-in among the names of a recipe.

    The code is the module of the entry point, or all modules of its package.
    """
    return {
        entry.name: _code_digest(entry.module)
        for kind in _REGISTRIES
        for entry in entry_points(group=f"{GROUP}.{kind}")
        if entry.name in names
    }


def union_of(registry: Mapping[str, Method[Any] | SamplerEntry[Any]]) -> Any:
    """Return the type of a recipe's table: any options class of the registry, told by `name`."""
    members = [entry.options for entry in registry.values()]
    return Annotated[functools.reduce(operator.or_, members), Field(discriminator="name")]


_REGISTRIES: dict[str, dict[str, Any]] = {
    "losses": METHODS,
    "samplers": SAMPLERS,
    "networks": NETWORKS,
}
_KINDS: dict[str, type[Method[Any] | SamplerEntry[Any]]] = {
    "losses": Method,
    "samplers": SamplerEntry,
}


def _load(entry: EntryPoint, kind: str) -> Any:
    title = _title(entry, kind)
    try:
        loaded = entry.load()
    except Exception as error:
        raise RecipeError(f"{title}: cannot be loaded: {error}") from error
    expected = _KINDS.get(kind)
    if expected is None:
        if not callable(loaded):
            raise RecipeError(f"{title}: expected a function that builds a network")
        return loaded
    if not isinstance(loaded, expected):
        raise RecipeError(f"{title}: expected a {expected.__name__}, found {type(loaded).__name__}")
    options: type[Any] = loaded.options
    name = options.model_fields.get("name") if issubclass(options, Options) else None
    if name is None or name.default != entry.name:
        raise RecipeError(
            f"{title}: its options must be a subclass of Options with the field "
            f'name: Literal["{entry.name}"] = "{entry.name}"'
        )
    return loaded


def _code_digest(module: str) -> str:
    package = sys.modules[module.partition(".")[0]]
    file = Path(package.__file__ or "")
    files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    digest = hashlib.sha256()
    for path in files:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _title(entry: EntryPoint, kind: str) -> str:
    package = entry.dist.name if entry.dist else "an unknown package"
    return f"plug-in {entry.name!r} ({kind}) of {package}"
