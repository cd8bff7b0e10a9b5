"""The table of training recipes."""

from __future__ import annotations

from training.recipes.reading import shipped_recipes


def table() -> str:
    """Tabulate every shipped recipe with its description."""
    rows = [f"| `{name}` | {text} |" for name, text in shipped_recipes().items()]
    return "\n".join(["| recipe | description |", "|---|---|", *rows])
