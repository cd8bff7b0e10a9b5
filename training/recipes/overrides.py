"""Overrides of a recipe from the command line: `--set key.path=value`."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.errors import RecipeError

# Tables whose other keys depend on `name`: --set of another name clears them.
_TABLES_BY_NAME = ("loss", "sampler")


@dataclass(frozen=True, slots=True)
class Override:
    """One `--set key.path=value` of the command line."""

    text: str
    key: str
    value: Any


def parse_override(text: str) -> Override:
    """Parse `key.path=value`; the value is TOML, or text where it is not.

    Raises:
        RecipeError: there is no equals sign.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise RecipeError(f"--set {text}: expected key=value")
    return Override(text, key.strip(), _toml_value(value.strip()))


def apply_overrides(values: Mapping[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    """Return `values` with each override set; a number in a key's path is an index of a list.

    An override of `loss.name` or `sampler.name` first removes the other keys of that table in the
    file, because they belong to the old name.

    Raises:
        RecipeError: the path of an override leads nowhere.
    """
    result: dict[str, Any] = copy.deepcopy(dict(values))
    for override in overrides:
        table, _, last = override.key.partition(".")
        if last != "name" or table not in _TABLES_BY_NAME:
            continue
        if isinstance(result.get(table), dict) and result[table].get("name") != override.value:
            result[table] = {"name": override.value}
    for override in overrides:
        *parents, last = override.key.split(".")
        node: Any = result
        for part in parents:
            node = _child(node, part, override.text)
        _assign(node, last, override)
    return result


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _child(node: Any, part: str, text: str) -> Any:
    if isinstance(node, dict):
        return node.setdefault(part, {})
    if isinstance(node, list) and part.isdigit() and int(part) < len(node):
        return node[int(part)]
    raise RecipeError(f"--set {text}: nothing to set at {part!r}")


def _assign(node: Any, last: str, override: Override) -> None:
    if isinstance(node, list) and last.isdigit() and int(last) < len(node):
        node[int(last)] = override.value
    elif isinstance(node, dict):
        node[last] = override.value
    else:
        raise RecipeError(f"--set {override.text}: nothing to set at {last!r}")
