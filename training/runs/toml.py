"""TOML to frozen dataclasses and back, strictly: an unknown key is an error with a suggestion."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from training.errors import RecipeError

T = TypeVar("T")
Choices = Mapping[str, Mapping[str, type[Any]]]


def read_toml(path: Path) -> dict[str, Any]:
    """Parse the file at `path`.

    Raises:
        RecipeError: it cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not TOML: {error}") from error


def nearest(word: str, legal: Iterable[str]) -> str:
    """Return `, did you mean 'x'?` for the legal name nearest to `word`, or nothing."""
    close = difflib.get_close_matches(word, list(legal), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""


def apply_overrides(
    table: Mapping[str, Any], overrides: Sequence[str], *, named: Iterable[str] = ()
) -> dict[str, Any]:
    """Return `table` with each `key.path=value` set; a number in the path is a place in a list.

    The `name` of a table in `named` decides what its other keys mean: an override of it drops those
    that the file gave, which are of the old name.
    """
    result: dict[str, Any] = _copied(table)
    given = [_override(override) for override in overrides]
    for key, value, _ in given:
        parent, _, last = key.partition(".")
        if parent in named and last == "name" and isinstance(result.get(parent), dict):
            before = result[parent]
            result[parent] = before if before.get("name") == value else {"name": value}
    for key, value, override in given:
        *parents, last = key.split(".")
        node: Any = result
        for part in parents:
            node = _child(node, part, override)
        _assign(node, last, value, override)
    return result


def parse_dataclass(
    cls: type[T],
    table: Mapping[str, Any],
    *,
    where: str,
    prefix: str = "",
    choices: Choices | None = None,
) -> T:
    """Build `cls` from `table`; `choices` gives, for a key, the classes its `name` selects from."""
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, cls))}
    given: dict[str, Any] = {}
    for key, value in table.items():
        if key not in fields:
            raise RecipeError(f"{where}: unknown key {prefix + key!r}{nearest(key, fields)}")
        if choices and key in choices:
            given[key] = _chosen(choices[key], value, where, prefix + key)
        else:
            given[key] = _converted(hints[key], value, where, prefix + key)
    missing = [
        name
        for name, f in fields.items()
        if name not in given
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise RecipeError(f"{where}: missing key {prefix + missing[0]!r}")
    return cls(**given)


def to_toml(table: Mapping[str, Any]) -> str:
    """Write nested mappings, lists of mappings and plain values as TOML."""
    return "\n".join(_lines(table, "")) + "\n"


def _chosen(options: Mapping[str, type[Any]], value: Any, where: str, key: str) -> Any:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise RecipeError(f"{where}: {key}: expected a table with a name")
    name = value["name"]
    if name not in options:
        raise RecipeError(f"{where}: {key}.name: no {key} {name!r}{nearest(name, options)}")
    return parse_dataclass(options[name], value, where=where, prefix=f"{key}.")


def _converted(hint: Any, value: Any, where: str, key: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return parse_dataclass(typing.cast(type[Any], hint), value, where=where, prefix=f"{key}.")
    if origin is tuple and isinstance(value, list):
        return tuple(
            _converted(arguments[0], item, where, f"{key}.{i}") for i, item in enumerate(value)
        )
    if origin is Literal:
        if value in arguments:
            return value
        legal = ", ".join(repr(a) for a in arguments)
        raise RecipeError(f"{where}: {key}: {value!r} is not one of {legal}")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    raise RecipeError(f"{where}: {key}: expected {_named(hint)}, found {value!r}")


def _named(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return "a list"
    return "a table" if dataclasses.is_dataclass(hint) else str(getattr(hint, "__name__", hint))


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _copied(v) for k, v in value.items()}
    return [_copied(v) for v in value] if isinstance(value, list) else value


def _child(node: Any, part: str, override: str) -> Any:
    if isinstance(node, dict):
        return node.setdefault(part, {})
    if isinstance(node, list) and part.isdigit() and int(part) < len(node):
        return node[int(part)]
    raise RecipeError(f"--set {override}: nothing to set at {part!r}")


def _assign(node: Any, last: str, value: Any, override: str) -> None:
    if isinstance(node, list) and last.isdigit() and int(last) < len(node):
        node[int(last)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise RecipeError(f"--set {override}: nothing to set at {last!r}")


def _override(override: str) -> tuple[str, Any, str]:
    key, equals, text = override.partition("=")
    if not equals:
        raise RecipeError(f"--set {override}: expected key=value")
    return key.strip(), _value(text.strip()), override


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _lines(table: Mapping[str, Any], prefix: str) -> list[str]:
    def is_table(value: Any) -> bool:
        nested = isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping)
        return isinstance(value, Mapping) or nested

    lines = [f"{key} = {_literal(v)}" for key, v in table.items() if not is_table(v)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{prefix}{key}]", *_lines(value, f"{prefix}{key}.")]
        elif is_table(value):
            for item in value:
                lines += ["", f"[[{prefix}{key}]]", *_lines(item, f"{prefix}{key}.")]
    return lines


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(v) for v in value) + "]"
    return repr(value)
