"""The command line of patch stores: `python -m training data …`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from matchserve.types import PatchSpec
from training.data.correspond import Tolerance
from training.data.photos import PhotoOptions, build_photos
from training.data.report import report_store
from training.data.views import DEFAULT_LEVELS

app = typer.Typer(
    help="Make, inspect and divide patch stores.", no_args_is_help=True, add_completion=False
)

Directories = Annotated[list[Path], typer.Argument(help="Folders of images.", show_default=False)]
StoreArgument = Annotated[Path, typer.Argument(help="A patch store.", show_default=False)]
Output = Annotated[Path, typer.Option("--output", "-o", help="The store to write.")]
Magnification = Annotated[
    float, typer.Option(help="Side of the cropped square in sigmas (K).", min=1, max=100)
]
Size = Annotated[int, typer.Option(help="Side of a patch in samples.", min=8, max=256)]
Workers = Annotated[int | None, typer.Option(help="Processes; all cores if not given.")]
MaxSide = Annotated[int, typer.Option(help="Larger images are reduced to this.")]


@app.command()
def photos(
    directories: Directories,
    output: Output,
    magnification: Magnification = 12.0,
    size: Size = 32,
    levels: Annotated[
        str, typer.Option(help="One level a view: easy, medium, hard, night.")
    ] = ",".join(DEFAULT_LEVELS),
    seed: Annotated[int, typer.Option(help="Of every view; kept in the store.")] = 0,
    max_keypoints: Annotated[int, typer.Option(help="Per view.")] = 3000,
    max_classes: Annotated[int, typer.Option(help="Per photograph.")] = 1000,
    max_side: MaxSide = 1024,
    position_tolerance: Annotated[float, typer.Option(help="In sigmas.")] = 1.2,
    scale_tolerance: Annotated[float, typer.Option(help="In octaves.")] = 0.7,
    angle_tolerance: Annotated[float, typer.Option(help="In degrees.")] = 40.0,
    workers: Workers = None,
) -> None:
    """Classes from single photographs: synthetic views, keypoints detected again in each."""
    options = PhotoOptions(
        spec=PatchSpec(size=size, magnification=magnification),
        levels=tuple(level.strip() for level in levels.split(",") if level.strip()),
        seed=seed,
        max_keypoints=max_keypoints,
        max_classes=max_classes,
        max_side=max_side,
        tolerance=Tolerance(position_tolerance, scale_tolerance, angle_tolerance),
    )
    start = time.perf_counter()
    build_photos(directories, output, options, workers=workers, made_by=_command())
    typer.echo(f"made in {time.perf_counter() - start:.0f} s")
    typer.echo(report_store(output))


@app.command()
def info(store: StoreArgument) -> None:
    """Counts, class sizes and SIFT's FPR95 of a store."""
    typer.echo(report_store(store))


def _command() -> str:
    """The command as it was given, without the folders of this machine before the last."""
    return " ".join(["data", *(Path(a).name if "/" in a else a for a in sys.argv[2:])])


if __name__ == "__main__":
    app()
