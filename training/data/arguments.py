"""Arguments that several commands of `python -m training data` share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

Directories = Annotated[list[Path], typer.Argument(help="Folders with images.", show_default=False)]
StoreArgument = Annotated[Path, typer.Argument(help="Path of the patch store.", show_default=False)]
Output = Annotated[Path, typer.Option("--output", "-o", help="Path of the patch store to write.")]
Magnification = Annotated[
    float,
    typer.Option(help="Side of the cropped square, in sigmas of the keypoint (K).", min=1, max=100),
]
Size = Annotated[int, typer.Option(help="Side of a patch, in samples.", min=8, max=256)]
Workers = Annotated[
    int | None, typer.Option(help="Number of processes; as many as CPU cores if not given.")
]
MaxSide = Annotated[
    int, typer.Option(help="Reduce images whose longer side is larger than this, in pixels.")
]


def command_line() -> str:
    """Return the command line, with paths reduced to their last part."""
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return " ".join(words if words[:1] == ["data"] else ["data", *words])
