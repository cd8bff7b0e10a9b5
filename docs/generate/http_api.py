"""The HTTP reference, from the service's OpenAPI schema."""

from __future__ import annotations

import functools
import json
from typing import Any

from matchserve.api.app import create_app
from matchserve.settings import Settings


@functools.cache
def schema() -> dict[str, Any]:
    """Return the OpenAPI schema of a service with default settings."""
    app = create_app(Settings(_env_file=None))
    app.state.service.close()
    described: dict[str, Any] = app.openapi()
    return described


def routes() -> str:
    """Describe every route as Markdown."""
    described = schema()
    return "\n".join(
        _operation(method.upper(), path, operation, described)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    )


def _operation(method: str, path: str, operation: dict[str, Any], described: dict[str, Any]) -> str:
    lines = [f"### `{method} {path}`", "", operation.get("description", operation["summary"]), ""]
    for kind, body in operation.get("requestBody", {}).get("content", {}).items():
        lines += [f"Request body `{kind}`:", "", *_fields(body["schema"]), ""]
    statuses = operation["responses"]
    successes = [status for status in statuses if status.startswith("2")]
    content = statuses[successes[0]].get("content", {})
    kinds = ", ".join(f"`{kind}`" for kind in content) or "without a body"
    response = content.get("application/json", {}).get("schema", {})
    if successes != ["200"]:
        kinds += f", status {' or '.join(successes)}"
    lines += [f"Response {kinds}:" if "$ref" in response else f"Response {kinds}.", ""]
    if "$ref" in response:
        name = response["$ref"].rpartition("/")[2]
        lines += [*_fields(described["components"]["schemas"][name]), ""]
    errors = ", ".join(status for status in statuses if status >= "400")
    if errors:
        lines += [f"Error statuses: {errors}.", ""]
    return "\n".join(lines)


def _fields(described: dict[str, Any]) -> list[str]:
    properties = described.get("properties")
    if not properties:
        return [described.get("description", "An object.")]
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    required = described.get("required", [])
    for name, field in properties.items():
        default = f"`{json.dumps(field['default'])}`" if "default" in field else ""
        default = "required" if name in required else default
        text = field.get("description", "").replace("|", "\\|")
        rows.append(f"| `{name}` | {_type(field)} | {default} | {text} |")
    return rows


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(option) for option in field["anyOf"])
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field.get("format") == "binary":
        return "file"
    text = field.get("title", "object") if "properties" in field else field.get("type", "object")
    return f"{text}{_range(field)}"


def _range(field: dict[str, Any]) -> str:
    low = field.get("minimum", field.get("exclusiveMinimum"))
    high = field.get("maximum")
    if low is None or high is None:
        return ""
    above = "above " if "exclusiveMinimum" in field else ""
    return f", {above}{low:g} to {high:g}"
