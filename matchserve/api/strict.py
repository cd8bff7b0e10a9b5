"""Strict models of requests, bounded types of their fields, and their validation."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import orjson
import pydantic
from pydantic import BaseModel, ConfigDict, Field

from matchserve.api.errors import invalid_parameter
from matchserve.limits import LIBRARY_LIMITS

Base64 = Annotated[
    str,
    Field(description="Base64, or a data URL with base64.", json_schema_extra={"format": "byte"}),
]
# Validation stops at the first wrong item: a million of them would be a million error objects.
Rows = Field(max_length=LIBRARY_LIMITS.max_keypoints, fail_fast=True)
Point = Annotated[list[float], Field(min_length=2, max_length=2, fail_fast=True)]
Row = Annotated[list[float], Field(max_length=4096, fail_fast=True)]
Column = Annotated[list[float], Rows]


FEATURES_ID = r"^[0-9a-f]{64}$"
"""Form of the id of stored features."""


class Strict(BaseModel):
    """A model that refuses unknown fields, NaN and infinities."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], values: dict[str, Any], *, is_text: bool) -> Model:
    """Validate values; those of a form are text, those of JSON must have the right type.

    Raises:
        InvalidParameter: a value does not fit its field.
    """
    try:
        return model.model_validate(values, strict=not is_text)
    except pydantic.ValidationError as error:
        raise invalid_parameter(error) from error


def parse_text(value: Any) -> Any:
    """Parse the JSON text of a form field; a JSON body holds the value itself."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise ValueError("must be JSON, such as [[0, 1]]") from error
