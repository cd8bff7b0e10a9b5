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
RunArgument = Annotated[
    Path,
    typer.Argument(help="Run directory; runs/NAME is enough if only one run has this name."),
]
RecipeArgument = Annotated[
    str,
    typer.Argument(help="Name of a shipped recipe, or path of a .toml file."),
]
