"""The base class of every table of a recipe, and the number types that several tables share.

A range is declared once, at its field, and pydantic checks it:

    margin: Annotated[float, Field(ge=0, lt=1)] = 0.6
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError


class Options(BaseModel):
    """A table of a recipe: immutable, with known keys only, and without type conversion.

    An integer is accepted for a float. NaN and infinity are refused unless a field allows them.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=False
    )


PROBLEM = "option_problem"


def option_problem(key: str, message: str) -> PydanticCustomError:
    """Return the error to raise in a validator that checks several fields together.

    `key` is the field to blame, relative to the table whose validator raises it.
    """
    context = {"key": key, "message": message.replace("{", "(").replace("}", ")")}
    return PydanticCustomError(PROBLEM, "{message}", context)


Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
FractionBelowOne = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
UnitDistance = Annotated[float, Field(ge=0, le=2)]
"""Euclidean distance of two unit vectors."""
Radians = Annotated[float, Field(ge=0, le=math.pi)]
Degrees = Annotated[float, Field(ge=0, le=180)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
AtLeastTwo = Annotated[int, Field(ge=2)]
