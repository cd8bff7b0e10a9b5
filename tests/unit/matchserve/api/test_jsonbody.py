"""JSON is bounded before it is parsed, and validation stops at the first error."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
import pytest

from matchserve.api.errors import InvalidJson
from matchserve.api.jsonbody import (
    MAX_CONTAINERS,
    MAX_STRING_BYTES,
    MAX_STRINGS,
    MAX_STRUCTURE_BYTES,
    MAX_VALUES,
    parse_object,
)
from matchserve.api.strict import Column, Point, Row, Rows
from matchserve.errors import MatchServeError, PayloadTooLarge
from matchserve.limits import LIBRARY_LIMITS


def items(item: bytes, count: int) -> bytes:
    return b'{"a":[' + b",".join([item] * count) + b"]}"


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b'{"a":' + b" " * MAX_STRUCTURE_BYTES + b"1}", PayloadTooLarge, "outside of strings"),
        (items(b"1", MAX_VALUES + 1), PayloadTooLarge, "JSON values"),
        (items(b"[]", MAX_CONTAINERS), InvalidJson, "arrays and objects"),
        (items(b"{}", MAX_CONTAINERS), InvalidJson, "arrays and objects"),
        (items(b'""', MAX_STRINGS), InvalidJson, "strings"),
        (b'{"a":"' + b"A" * MAX_STRING_BYTES + b'A"}', PayloadTooLarge, "bytes were sent"),
        (b'{"a":"' + b"\\" * 2000 + b'"}', InvalidJson, "backslashes"),
    ],
    ids=["spaces", "numbers", "arrays", "objects", "strings", "one string", "backslashes"],
)
def test_too_much_json_is_refused_before_it_is_parsed(
    body: bytes, kind: type[MatchServeError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(_: bytes) -> None:
        raise AssertionError("a parser holds the interpreter's lock for the whole body")

    monkeypatch.setattr("orjson.loads", parse)
    with pytest.raises(kind, match=message):
        parse_object(body)


@pytest.mark.parametrize(
    ("item", "count"), [(b"1", MAX_VALUES), (b"[]", MAX_CONTAINERS - 2), (b'""', MAX_STRINGS - 1)]
)
def test_json_within_the_limits_is_parsed(item: bytes, count: int) -> None:
    assert len(parse_object(items(item, count))["a"]) == count


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Annotated[list[Point], Rows], [[]] * 1000),
        (Point, [None, None]),
        (Annotated[list[Row], Rows], [[None]] * 1000),
        (Row, [None] * 1000),
        (Column, [None] * 1000),
    ],
)
def test_validation_stops_at_the_first_error(kind: Any, values: list[object]) -> None:
    with pytest.raises(pydantic.ValidationError) as refusal:
        pydantic.TypeAdapter(kind).validate_python(values)
    assert refusal.value.error_count() == 1


def test_the_number_of_rows_is_limited() -> None:
    rows = [[0.0, 0.0]] * (LIBRARY_LIMITS.max_keypoints + 1)
    with pytest.raises(pydantic.ValidationError, match="at most"):
        pydantic.TypeAdapter(Annotated[list[Point], Rows]).validate_python(rows)
