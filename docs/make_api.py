"""`python docs/make_api.py`: writes docs/openapi.json and the reference part of http-api.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matchserve.api.app import create_app
from matchserve.settings import Settings

DOCS = Path(__file__).resolve().parent
MARK = "<!-- Below this line: written by docs/make_api.py from the schema. -->\n"


def schema() -> dict[str, Any]:
    """The schema of a service with default settings."""
    app = create_app(Settings(_env_file=None))
    app.state.service.close()
    described: dict[str, Any] = app.openapi()
    return described


def schema_text(described: dict[str, Any]) -> str:
    """The schema as it is committed."""
    return json.dumps(described, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def reference(described: dict[str, Any]) -> str:
    """Every route as Markdown."""
    parts = []
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(method.upper(), path, operation, described))
    return "\n".join(parts)


def _operation(method: str, path: str, operation: dict[str, Any], described: dict[str, Any]) -> str:
    lines = [f"### `{method} {path}`", "", operation.get("description", operation["summary"]), ""]
    for kind, body in operation.get("requestBody", {}).get("content", {}).items():
        lines += [f"Body `{kind}`:", "", *_fields(body["schema"]), ""]
    statuses = operation["responses"]
    kinds = ", ".join(f"`{kind}`" for kind in statuses["200"].get("content", {}))
    answer = statuses["200"].get("content", {}).get("application/json", {}).get("schema", {})
    lines += [f"Answers {kinds}:" if "$ref" in answer else f"Answers {kinds}.", ""]
    if "$ref" in answer:
        name = answer["$ref"].rpartition("/")[2]
        lines += [*_fields(described["components"]["schemas"][name]), ""]
    refused = ", ".join(f"{s}" for s in statuses if s != "200")
    if refused:
        lines += [f"Refuses with {refused}.", ""]
    return "\n".join(lines)


def _fields(described: dict[str, Any]) -> list[str]:
    properties = described.get("properties")
    if not properties:
        return [described.get("description", "an object")]
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    required = described.get("required", [])
    for name, field in properties.items():
        default = "required" if name in required else f"`{json.dumps(field.get('default'))}`"
        if "default" not in field and name not in required:
            default = ""
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
    low = field.get("minimum", field.get("exclusiveMinimum"))
    high = field.get("maximum")
    if low is not None and high is not None:
        sign = "above " if "exclusiveMinimum" in field else ""
        text += f", {sign}{low} to {high}"
    return str(text)


def page(described: dict[str, Any]) -> str:
    """docs/reference/http-api.md with its reference part written anew."""
    head = (DOCS / "reference" / "http-api.md").read_text(encoding="utf-8").partition(MARK)[0]
    return head + MARK + "\n" + reference(described)


def main() -> None:
    """Write both files."""
    described = schema()
    (DOCS / "openapi.json").write_text(schema_text(described), encoding="utf-8")
    (DOCS / "reference" / "http-api.md").write_text(page(described), encoding="utf-8")
    sys.stdout.write("wrote docs/openapi.json and docs/reference/http-api.md\n")


if __name__ == "__main__":
    main()
