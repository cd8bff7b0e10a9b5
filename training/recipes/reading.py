"""Read a recipe file: TOML, the recipes it extends, and overrides from the command line.

    extends = "sdgm-paper"       # a shipped recipe, or a path relative to this file

A recipe that extends another is merged over it key by key, with two exceptions. A list replaces the
whole list. A table with another `name` (another loss, sampler, network or optimiser) replaces the
whole table, because the other keys belong to the old name.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from training.errors import RecipeError
from training.recipes.overrides import Override, apply_overrides, parse_override
from training.recipes.suggestions import suggestion

SHIPPED = resources.files("training") / "recipes"
# Shipped by earlier versions; now in docs/research/recipes of the repository.
RESEARCH = (
    "accurate",
    "accurate-start",
    "compact-adasample-sdgm",
    "compact-sdgm",
    "compact-study",
    "compact-wide",
    "sdgm-cpu-finetune",
)


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """A recipe file as text, to find the line of a key in."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True)
class RecipeTable:
    """The merged content of a recipe, and where it came from.

    `files` begins with the file that was asked for; those that it extends follow.
    """

    values: dict[str, Any]
    files: tuple[RecipeFile, ...] = ()
    overrides: tuple[Override, ...] = ()
    title: str = ""

    def place(self, keys: Sequence[str]) -> str:
        """Return where `keys` is set: `file:line`, the override, or else the file's name."""
        key = ".".join(keys)
        title = self.title or (self.files[0].path.name if self.files else "recipe")
        for override in reversed(self.overrides):
            if key == override.key or key.startswith(f"{override.key}."):
                return f"{title} with --set {override.text}"
        # A key that the file does not set is reported at its table.
        for length in range(len(keys), 0, -1):
            for file in self.files:
                line = find_line(file.text, keys[:length])
                if line:
                    return f"{self.title or file.path.name}:{line}"
        return title


def shipped_recipes() -> dict[str, str]:
    """Return the name of each shipped recipe and the first comment line of its file."""
    entries = sorted(SHIPPED.iterdir(), key=lambda entry: entry.name)
    return {
        entry.name.removesuffix(".toml"): entry.read_text("utf-8").splitlines()[0].lstrip("# ")
        for entry in entries
        if entry.name.endswith(".toml")
    }


def recipe_path(name_or_path: str, folder: Path = Path()) -> Path:
    """Return the file of a shipped recipe, or a path ending in .toml relative to `folder`.

    Raises:
        RecipeError: no shipped recipe has this name.
    """
    if name_or_path.endswith(".toml"):
        return folder / name_or_path
    if name_or_path in RESEARCH:
        raise RecipeError(
            f"the recipe {name_or_path!r} is no longer installed: give the path of its file, "
            f"docs/research/recipes/{name_or_path}.toml in the repository"
        )
    shipped = shipped_recipes()
    if name_or_path not in shipped:
        raise RecipeError(
            f"no recipe {name_or_path!r}{suggestion(name_or_path, shipped)}; "
            f"`python -m training recipes` lists the shipped ones, and a path must end in .toml"
        )
    return Path(str(SHIPPED / f"{name_or_path}.toml"))


def read_recipe_table(path: Path, overrides: Sequence[str] = ()) -> RecipeTable:
    """Read the recipe file at `path` with what it extends, then apply `key.path=value` overrides.

    A recipe without a `name` gets that of its file.

    Raises:
        RecipeError: a file cannot be read or parsed, the files extend each other in a circle, or an
            override cannot be applied.
    """
    values, files = _read_extended(path, ())
    values.setdefault("name", path.stem)
    parsed = tuple(parse_override(text) for text in overrides)
    return RecipeTable(apply_overrides(values, parsed), files, parsed)


def read_toml(path: Path) -> tuple[dict[str, Any], RecipeFile]:
    """Parse the file at `path`; return its content and its text.

    Raises:
        RecipeError: the file cannot be read or is not TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text), RecipeFile(path, text)
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not TOML: {error}") from error
    except RecursionError as error:
        raise RecipeError(f"{path}: nested too deeply") from error


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes` merged over it, as the module's docstring describes."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping) and not _has_other_name(old, value):
            result[key] = merge(old, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def find_line(text: str, keys: Sequence[str]) -> int:
    """Return the line (from 1) that sets `keys`, or opens that table; 0 if there is none.

    This looks at `[table]`, `[[table]]` and `key =` lines only: enough for a hint, and cheap.
    """
    table: list[str] = []
    arrays: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line)
        if header:
            table = header[2].split(".")
            if header[1] == "[[":
                index = arrays[header[2]] = arrays.get(header[2], -1) + 1
                table.append(str(index))
            if table == list(keys):
                return number
            continue
        key = re.match(r"\s*([\w.-]+)\s*=", line)
        if key and [*table, *key[1].split(".")] == list(keys):
            return number
    return 0


def _read_extended(
    path: Path, before: tuple[Path, ...]
) -> tuple[dict[str, Any], tuple[RecipeFile, ...]]:
    resolved = path.resolve()
    if resolved in before:
        circle = " extends ".join(p.name for p in (*before[before.index(resolved) :], resolved))
        raise RecipeError(f"{before[0]}: recipes extend each other in a circle: {circle}")
    values, file = read_toml(path)
    parent = values.pop("extends", None)
    if parent is None:
        return values, (file,)
    where = f"{path.name}:{find_line(file.text, ['extends'])}: extends"
    if not isinstance(parent, str):
        raise RecipeError(f"{where}: expected a recipe's name or path, found {parent!r}")
    try:
        inherited, files = _read_extended(recipe_path(parent, path.parent), (*before, resolved))
    except RecipeError as error:
        if "in a circle" in error.message:
            raise
        raise RecipeError(f"{where}: {error.message}") from error
    # Two recipes never share a name: it is part of the name of the run.
    inherited.pop("name", None)
    return merge(inherited, values), (file, *files)


def _has_other_name(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return "name" in old and "name" in new and bool(old["name"] != new["name"])
