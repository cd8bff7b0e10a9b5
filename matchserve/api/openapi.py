"""The parts of the OpenAPI description that the framework cannot see: bodies that we read."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from matchserve.api.answers import MSGPACK, NPZ
from matchserve.api.errors import PROBLEM
from matchserve.api.schemas import Problem

_PROBLEMS = {
    400: "The body is not what its content type says.",
    401: "An API key is needed.",
    404: "No such model.",
    406: "None of the accepted types is written here.",
    413: "The body or an image is too large.",
    415: "A content type or image format that is not read here.",
    422: "A parameter or an image cannot be used.",
    429: "Too many requests; see Retry-After.",
    503: "The model failed or is not ready, or the service shuts down.",
    504: "The deadline passed.",
}

DESCRIPTION = """\
Match photographs with local descriptors.

Coordinates are pixels of the image as sent, the centre of the top-left pixel at (0, 0). Every
error is `application/problem+json` with a stable `code`. Of JSON keys given twice the last holds.
"""


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Responses for these statuses; the usual ones of a POST if none are given."""
    schema = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": _PROBLEMS[status], "content": schema}
        for status in statuses or _PROBLEMS
    }


def answers(model: type[BaseModel], *more_types: str) -> dict[int | str, dict[str, Any]]:
    """A successful response: JSON of `model`, npz, msgpack, and whatever else."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    content = dict.fromkeys((NPZ, MSGPACK, *more_types), binary)
    return {200: {"model": model, "description": "Done.", "content": content}}


def body(**schemas: dict[str, Any]) -> dict[str, Any]:
    """A request body by content type, given as keywords with `json`, `form` and `octets`."""
    names = {
        "json": "application/json",
        "form": "multipart/form-data",
        "octets": "application/octet-stream",
    }
    content = {names[kind]: {"schema": _inlined(schema)} for kind, schema in schemas.items()}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Put the definitions that pydantic keeps apart where they are referred to."""
    definitions = schema.pop("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str):
                return resolve(definitions[reference.rpartition("/")[2]])
            return {key: resolve(item) for key, item in value.items()}
        return [resolve(item) for item in value] if isinstance(value, list) else value

    return dict(resolve(schema))


def problem_schema() -> dict[str, Any]:
    """The schema that every problem refers to."""
    return Problem.model_json_schema()
