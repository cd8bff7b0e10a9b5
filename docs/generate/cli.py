"""The command line reference, from the typer applications."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer
import typer.main

import matchserve.cli
import training.cli

HIDDEN = ("--help", "--install-completion", "--show-completion")


def matchserve_commands() -> str:
    """Describe every command of `matchserve` as Markdown."""
    return _reference("matchserve", matchserve.cli.app)


def training_commands() -> str:
    """Describe every command of `python -m training` as Markdown."""
    return _reference("python -m training", training.cli.app)


def _reference(program: str, app: typer.Typer) -> str:
    commands = _leaves(program, typer.main.get_command(app))
    return "\n".join(_command(name, command) for name, command in commands)


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command that runs something, with its full name."""
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child_name, child in children.items():
        if not child.hidden:
            yield from _leaves(f"{name} {child_name}", child)


def _command(name: str, command: Any) -> str:
    context = typer.Context(command)
    records = [parameter.get_help_record(context) for parameter in command.params]
    rows = [_row(*record) for record in records if record and not record[0].startswith(HIDDEN)]
    table = ["| argument or option | meaning |", "|---|---|", *rows] if rows else []
    return "\n".join([f"### `{name}`", "", (command.help or "").strip(), "", *table, ""])


def _row(name: str, text: str) -> str:
    meaning = re.sub(r"\s+", " ", text).strip()
    return "| `{}` | {} |".format(name.replace("|", "\\|"), _escaped(meaning))


def _escaped(text: str) -> str:
    """Keep `|`, `<` and `>` from being read as Markdown or HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")
