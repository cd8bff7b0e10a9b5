"""The table of training recipes, as `python -m training recipes` lists them."""

from __future__ import annotations

from typer.testing import CliRunner

from training.cli import app


def table() -> str:
    """Return what `python -m training recipes` prints, as a code block."""
    result = CliRunner().invoke(app, ["recipes"], env={"COLUMNS": "100", "TERM": "dumb"})
    return f"```text\n{result.output.rstrip()}\n```"
