"""Command-line arguments that several commands share: a run, a recipe, overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one value of the recipe, for example optim.lr=0.5 or "
        "data.train.0.path=stores/mine. Can be repeated.",
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        help="Device that trains: auto, cpu or cuda. Short for --set run.device=...",
        show_default="the recipe's",
    ),
]
RunArgument = Annotated[
    Path,
    typer.Argument(help="Run directory; runs/NAME is enough if only one run has this name."),
]
RecipeArgument = Annotated[
    str,
    typer.Argument(help="Name of a shipped recipe, or path of a .toml file."),
]


def with_device(overrides: list[str] | None, device: str | None) -> list[str]:
    """Return the overrides of a recipe, with that of `--device` if it is given."""
    return [*(overrides or ()), *([f"run.device={device}"] if device else ())]
