"""The command `python -m training data modal`."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import typer

from matchserve.types import PatchSpec
from training.data.arguments import Directories, Magnification, Output, Size, Workers, command_line


def modal(
    directories: Directories,
    output: Output,
    magnification: Magnification = 12.0,
    size: Size = 32,
    orientation: Annotated[
        Literal["own", "aligned"],
        typer.Option(
            help="Angle of the patches: own takes detected orientations, aligned turns the second "
            "patch as the homography does."
        ),
    ] = "aligned",
    turn: Annotated[
        float,
        typer.Option(help="Largest error of aligned angles, in degrees.", min=0, max=180),
    ] = 15.0,
    seed: Annotated[
        int, typer.Option(help="Random seed of angles and of the choice of classes.")
    ] = 0,
    max_keypoints: Annotated[
        int, typer.Option(help="Maximum number of keypoints per image.")
    ] = 2048,
    max_classes: Annotated[
        int, typer.Option(help="Maximum number of classes per pair of images and label.")
    ] = 400,
    min_similarity: Annotated[
        float,
        typer.Option(help="Smallest absolute correlation of the coarse patches.", min=0, max=1),
    ] = 0.3,
    workers: Workers = None,
) -> None:
    """Make a patch store from registered pairs: folders with 1.*, 2.* and H_1_2.

    Classes get the label detected (keypoints of both images) or projected (a keypoint of one image
    and its place in the other); a recipe selects them with `labels`.
    """
    from training.data.modal.build import ModalOptions, build_modal
    from training.data.store.report import report_store

    options = ModalOptions(
        spec=PatchSpec(size=size, magnification=magnification),
        orientation=orientation,
        turn_deg=turn,
        seed=seed,
        max_keypoints=max_keypoints,
        max_classes=max_classes,
        min_similarity=min_similarity,
    )
    start = time.perf_counter()
    build_modal(directories, output, options, workers=workers, made_by=command_line())
    typer.echo(f"made in {time.perf_counter() - start:.0f} s")
    typer.echo(report_store(output))
