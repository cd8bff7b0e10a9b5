"""Parts of the OpenAPI description that FastAPI cannot derive: bodies that we parse ourselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from matchserve.api.errors import PROBLEM
from matchserve.api.response_schemas import Problem
from matchserve.api.responses import MSGPACK, NPZ

_PROBLEMS = {
    400: "The body does not have the format that its content type says.",
    401: "An API key is required.",
    404: "There is nothing of that name.",
    406: "The service cannot produce any of the accepted media types.",
    413: "The body or an image is too large.",
    415: "The content type or the image format is not supported.",
    422: "A parameter or an image cannot be used.",
    429: "There are too many requests; see Retry-After.",
    503: "The model failed or is not ready, or the service is shutting down.",
    504: "The deadline passed.",
}

_PROBLEMS_OF_COLLECTIONS = {
    409: "It is in use, or something else has this name.",
    507: "There is no room on the disk of the service.",
}

OBJECT: dict[str, Any] = {
    "description": "Done.",
    "content": {"application/json": {"schema": {"type": "object"}}},
}
"""A response with a JSON object."""

DESCRIPTION = """\
Match photographs with local descriptors.

Coordinates are pixels of the image as sent; the centre of the top-left pixel is (0, 0). Every
error is `application/problem+json` with a stable `code`. If a JSON key is given twice, the last
value is used.
"""


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of these statuses; those of a POST if none are given."""
    schema = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    texts = _PROBLEMS | _PROBLEMS_OF_COLLECTIONS
    return {
        status: {"description": texts[status], "content": schema}
        for status in statuses or _PROBLEMS
    }


def success(model: type[BaseModel], *more_types: str) -> dict[int | str, dict[str, Any]]:
    """Return the successful response: JSON of `model`, npz, msgpack, and `more_types`."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    content = dict.fromkeys((NPZ, MSGPACK, *more_types), binary)
    return {200: {"model": model, "description": "Done.", "content": content}}


def body(**schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a request body with a schema for each of the keywords `json`, `form`, `octets`."""
    names = {
        "json": "application/json",
        "form": "multipart/form-data",
        "octets": "application/octet-stream",
    }
    content = {names[kind]: {"schema": _inlined(schema)} for kind, schema in schemas.items()}
    return {"requestBody": {"required": True, "content": content}}


def binary_body(*types: str) -> dict[str, Any]:
    """Return a request body of bytes in one of these media types."""
    schema = {"schema": {"type": "string", "format": "binary"}}
    return {"requestBody": {"required": True, "content": dict.fromkeys(types, schema)}}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace references to pydantic's definitions by the definitions."""
    definitions = schema.pop("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str):
                return resolve(definitions[reference.rpartition("/")[2]])
            return {key: resolve(item) for key, item in value.items()}
        return [resolve(item) for item in value] if isinstance(value, list) else value

    return dict(resolve(schema))


def with_limits(schema: dict[str, Any], limits: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Set the maximum and default of the named fields wherever they are in the schema."""

    for properties in _all_properties(schema):
        for name in limits.keys() & properties.keys():
            field = properties[name]
            for option in field.pop("anyOf", ()):
                field.update(option if option["type"] != "null" else {})
            field.update(limits[name])
    return schema


def _all_properties(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the `properties` of every object in a schema."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in items:
        yield from _all_properties(item)
    if isinstance(value, dict) and isinstance(value.get("properties"), dict):
        yield value["properties"]


def problem_schema() -> dict[str, Any]:
    """Return the schema of every error response."""
    return Problem.model_json_schema()
