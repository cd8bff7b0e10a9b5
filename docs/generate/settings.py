"""The table of settings, from `matchserve.settings.Settings`."""

from __future__ import annotations

from pydantic.fields import FieldInfo

from matchserve.settings import PREFIX, Settings


def table() -> str:
    """Describe every setting as a row: variable, default, meaning."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        meaning = (field.description or "").replace("\n", " ").replace("|", "\\|")
        rows.append(f"| `{PREFIX}{name.upper()}` | {_default(field)} | {meaning} |")
    return "\n".join(rows)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else f"`{value}`"
