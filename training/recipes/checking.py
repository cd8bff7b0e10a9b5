"""Turn a table into a checked model, and pydantic's complaints into one line a person can act on.

The line has the file and line, the key, what was found, what is legal, and the nearest legal name:

    mine.toml:12: optim.lr: expected more than 0, found -1.0
    mine.toml:14: unknown key 'optim.momentun', did you mean 'momentum'?
"""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from typing import Any, TypeVar, Union

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from training.errors import RecipeError
from training.recipes.options import PROBLEM
from training.recipes.reading import RecipeTable
from training.recipes.suggestions import suggestion, unknown_name

Model = TypeVar("Model", bound=BaseModel)

_LIMIT_WORDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_TYPE_WORDS = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "model_type": "a table",
    "model_attributes_type": "a table with a name",
    "union_tag_not_found": "a table with a name",
}


def validate(model: type[Model], table: RecipeTable) -> Model:
    """Build `model` from the values of `table`.

    Raises:
        RecipeError: with the place and a description of the first problem.
    """
    try:
        return model.model_validate(table.values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RecipeError(describe(model, first, table)) from error


def describe(model: type[BaseModel], error: ErrorDetails, table: RecipeTable) -> str:
    """Describe one complaint of pydantic about `table` in one line."""
    keys, field, owner = _locate(model, [str(part) for part in error["loc"]])
    kind, context = error["type"], error.get("ctx", {})
    if kind == PROBLEM:
        keys = [*keys, *str(context["key"]).split(".")]
    if kind == "union_tag_invalid":
        keys = [*keys, "name"]
    place, key = table.place(keys), ".".join(keys)
    if kind == "missing":
        return f"{place}: missing key {key!r}"
    if kind == "extra_forbidden":
        legal = owner.model_fields if owner else {}
        hint = suggestion(keys[-1], legal) or f"; legal keys are {', '.join(legal)}"
        return f"{place}: unknown key {key!r}{hint}"
    return f"{place}: {key}: {_problem(error, field)}"


def _problem(error: ErrorDetails, field: FieldInfo | None) -> str:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == PROBLEM:
        return str(context["message"])
    if kind == "union_tag_invalid":
        legal = [name.strip(" '") for name in str(context["expected_tags"]).split(",")]
        return unknown_name(str(error["loc"][-1]), str(context["tag"]), legal)
    if kind == "literal_error":
        legal = [str(a) for a in typing.get_args(field.annotation)] if field else []
        hint = suggestion(str(value), legal)
        return f"{value!r} is not one of {', '.join(map(repr, legal))}{hint}"
    if kind == "int_from_float":
        return f"expected an integer, found {value!r}"
    if kind in _TYPE_WORDS:
        return f"expected {_TYPE_WORDS[kind]}, found {value!r}"
    limits = _limits(field)
    if limits or kind == "finite_number":
        return f"expected {limits or 'a finite number'}, found {value!r}"
    return f"{error['msg']}, found {value!r}"


def _limits(field: FieldInfo | None) -> str:
    """Describe the range of a number: 'at least 0 and less than 1'."""
    words = [
        f"{word} {getattr(limit, name):g}"
        for limit in (field.metadata if field else ())
        for name, word in _LIMIT_WORDS.items()
        if hasattr(limit, name)
    ]
    return " and ".join(words)


def _locate(
    model: type[BaseModel], parts: Sequence[str]
) -> tuple[list[str], FieldInfo | None, type[BaseModel] | None]:
    """Return the key path of pydantic's location, its field, and the model that holds the field.

    Pydantic puts the tag of a union into the location ('loss', 'sdgm', 'margin'); the tag is not
    part of the key path.
    """
    keys: list[str] = []
    field: FieldInfo | None = None
    owner: type[BaseModel] | None = model
    kind: Any = model
    for part in parts:
        tagged = _member(kind, part)
        if tagged is not None:
            kind = owner = tagged
            continue
        keys.append(part)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            owner = kind
            field = kind.model_fields.get(part)
            kind = field.annotation if field else None
        else:
            items = typing.get_args(kind)
            kind = items[0] if items else None
            # The item of a list has its own constraints.
            field = FieldInfo.from_annotation(kind) if items else None
            kind = field.annotation if field else None
    return keys, field, owner


def _member(kind: Any, tag: str) -> type[BaseModel] | None:
    """Return the member of a union whose `name` is `tag`."""
    if typing.get_origin(kind) not in (Union, types.UnionType):
        return None
    for member in typing.get_args(kind):
        if isinstance(member, type) and issubclass(member, BaseModel):
            name = member.model_fields.get("name")
            if name is not None and name.default == tag:
                return member
    return None
