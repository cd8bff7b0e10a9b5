"""Commands that make and inspect patch stores and sequences: `python -m training data …`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from matchserve.types import PatchSpec
from training.data.arguments import (
    Directories,
    Magnification,
    MaxSide,
    Output,
    Size,
    StoreArgument,
    Workers,
    command_line,
)
from training.data.modal.commands import modal
from training.errors import DataError

# Imports are inside the commands: `train` should not wait for the import of pycolmap.
app = typer.Typer(
    help="Make, inspect and split patch stores; make sequences for `evaluate`.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def photos(
    directories: Directories,
    output: Output,
    magnification: Magnification = 12.0,
    size: Size = 32,
    levels: Annotated[
        str,
        typer.Option(
            help="Difficulty of each view, separated by commas: easy, medium, hard, night."
        ),
    ] = "easy,medium,medium,hard,hard,night",
    seed: Annotated[int, typer.Option(help="Random seed of the views; recorded in the store.")] = 0,
    max_keypoints: Annotated[
        int, typer.Option(help="Maximum number of keypoints per view.")
    ] = 3000,
    max_classes: Annotated[
        int, typer.Option(help="Maximum number of classes per photograph.")
    ] = 1000,
    max_side: MaxSide = 1024,
    position_tolerance: Annotated[
        float, typer.Option(help="Largest position error of corresponding keypoints, in sigmas.")
    ] = 1.2,
    scale_tolerance: Annotated[
        float, typer.Option(help="Largest scale error of corresponding keypoints, in octaves.")
    ] = 0.7,
    angle_tolerance: Annotated[
        float, typer.Option(help="Largest angle error of corresponding keypoints, in degrees.")
    ] = 40.0,
    workers: Workers = None,
) -> None:
    """Make a patch store from single photographs and synthetic views of them."""
    from training.data.photos.build import PhotoOptions, build_photos
    from training.data.photos.correspondence import Tolerance
    from training.data.store.report import report_store

    options = PhotoOptions(
        spec=PatchSpec(size=size, magnification=magnification),
        levels=_words(levels),
        seed=seed,
        max_keypoints=max_keypoints,
        max_classes=max_classes,
        max_side=max_side,
        tolerance=Tolerance(position_tolerance, scale_tolerance, angle_tolerance),
    )
    start = time.perf_counter()
    build_photos(directories, output, options, workers=workers, made_by=command_line())
    typer.echo(f"made in {time.perf_counter() - start:.0f} s")
    typer.echo(report_store(output))


@app.command()
def scenes(
    directories: Directories,
    output: Output,
    workspace: Annotated[
        Path, typer.Option(help="Folder for reconstructions; those already in it are reused.")
    ],
    magnification: Magnification = 12.0,
    size: Size = 32,
    model: Annotated[
        str, typer.Option(help="Model that describes keypoints for the reconstruction.")
    ] = "rootsift",
    max_keypoints: Annotated[
        int, typer.Option(help="Maximum number of keypoints per image.")
    ] = 6144,
    min_images: Annotated[
        int, typer.Option(help="Minimum number of images in which a 3D point was matched.", min=2)
    ] = 3,
    max_error: Annotated[
        float, typer.Option(help="Largest reprojection error of an observation, in pixels.")
    ] = 2.0,
    max_patches: Annotated[
        int,
        typer.Option(help="Maximum number of patches per class; the most different ones are kept."),
    ] = 8,
    seed: Annotated[int, typer.Option(help="Random seed for RANSAC and the COLMAP mapper.")] = 0,
    workers: Workers = None,
) -> None:
    """Make a patch store from multi-view image sets, verified by structure from motion."""
    from training.data.scenes.build import SceneOptions, build_scenes
    from training.data.scenes.sfm import SfmOptions
    from training.data.scenes.tracks import TrackOptions
    from training.data.store.report import report_store

    options = SceneOptions(
        spec=PatchSpec(size=size, magnification=magnification),
        sfm=SfmOptions(model=model, max_keypoints=max_keypoints, seed=seed),
        tracks=TrackOptions(min_images=min_images, max_error_px=max_error, max_patches=max_patches),
    )
    start = time.perf_counter()
    lines = build_scenes(
        directories, output, options, workspace=workspace, workers=workers, made_by=command_line()
    )
    typer.echo("\n".join(lines))
    typer.echo(f"made in {time.perf_counter() - start:.0f} s")
    typer.echo(report_store(output))


app.command()(modal)


@app.command()
def sequences(
    directories: Directories,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write the sequences to.")
    ],
    only: Annotated[
        Path | None,
        typer.Option(help="Use only the photographs that this patch store was made from."),
    ] = None,
    levels: Annotated[
        str, typer.Option(help="Difficulty of each of up to five views: easy, medium, hard, night.")
    ] = "easy,medium,medium,hard,night",
    seed: Annotated[
        int,
        typer.Option(help="Random seed of the views; choose another than that of training stores."),
    ] = 77,
    min_length: Annotated[
        int,
        typer.Option(
            help="Leave out photographs whose longer side is shorter than this, in pixels."
        ),
    ] = 600,
    max_side: MaxSide = 1024,
    workers: Workers = None,
) -> None:
    """Make homography sequences from photographs, for `evaluate --benchmark homography`."""
    from training.data.photos.sequences import SequenceOptions, write_sequences
    from training.data.store.divide import used_scenes
    from training.data.store.reader import PatchStore

    options = SequenceOptions(_words(levels), seed=seed, min_length=min_length, max_side=max_side)
    names = None if only is None else used_scenes(PatchStore.open(only))
    written = write_sequences(directories, output, options, only=names, workers=workers)
    typer.echo(f"{output}: {written} sequences of {len(options.levels) + 1} images")


@app.command()
def info(
    stores: Annotated[
        list[Path], typer.Argument(help="Paths of patch stores.", show_default=False)
    ],
    plot: Annotated[
        Path | None, typer.Option(help="Draw class sizes, scales and contrast to this PNG file.")
    ] = None,
) -> None:
    """Print counts, class sizes, scenes and the FPR95 of SIFT for patch stores."""
    from training.data.store.report import plot_stores, report_store, scene_table

    for store in stores:
        typer.echo(f"{store}\n{report_store(store)}\n{scene_table(store)}")
    if plot is not None:
        plot_stores(stores, plot)


@app.command()
def merge(
    stores: Annotated[
        list[Path], typer.Argument(help="Paths of patch stores.", show_default=False)
    ],
    output: Output,
) -> None:
    """Merge several patch stores into one."""
    from training.data.store.divide import merge_stores
    from training.data.store.report import report_store

    typer.echo(report_store(merge_stores(stores, output, made_by=command_line())))


@app.command()
def split(
    store: StoreArgument,
    train: Annotated[Path, typer.Argument(help="Store to write the remaining scenes to.")],
    validation: Annotated[Path, typer.Argument(help="Store to write the held-out scenes to.")],
    scene: Annotated[
        list[str] | None,
        typer.Option(help="Scene to hold out, or a pattern of names; may be repeated."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(help="Number of scenes to hold out at random.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed for --count.")] = 0,
) -> None:
    """Split a patch store into training and validation scenes; no scene is in both."""
    from training.data.store.divide import random_scenes, split_store
    from training.data.store.reader import PatchStore
    from training.data.store.report import report_store

    if (scene is None) == (count is None):
        raise DataError("give either --scene (may be repeated) or --count")
    held_out = scene if scene else random_scenes(PatchStore.open(store), count or 0, seed)
    for path in split_store(store, train, validation, held_out, made_by=command_line()):
        typer.echo(f"{path}\n{report_store(path)}")


@app.command()
def pairs(
    store: StoreArgument,
    output: Output,
    count: Annotated[
        int,
        typer.Option(
            help="Number of pairs, of which half match; the others are drawn in training.", min=4
        ),
    ],
    seed: Annotated[int, typer.Option(help="Random seed of the pairs.")] = 0,
) -> None:
    """Limit a patch store to a fixed number of pairs."""
    from training.data.store.fixed_pairs import limit_pairs
    from training.data.store.report import report_store

    made = limit_pairs(store, output, count=count, seed=seed, made_by=command_line())
    typer.echo(report_store(made))


@app.command()
def show(
    store: StoreArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG file to write.")],
    classes: Annotated[int, typer.Option(help="Number of classes to show.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Random seed for the choice of classes.")] = 0,
    label: Annotated[str | None, typer.Option(help="Show only classes of this label.")] = None,
    scene: Annotated[
        str | None,
        typer.Option(help="Show only scenes of this name, or of a pattern such as night/*."),
    ] = None,
) -> None:
    """Draw a contact sheet of random classes."""
    from training.data.store.reader import PatchStore
    from training.data.store.sheet import contact_sheet, write_sheet

    view = PatchStore.open(store)
    view = view if label is None else view.with_labels([label])
    view = view if scene is None else view.split([scene])
    write_sheet(output, contact_sheet(view, classes=classes, seed=seed))


@app.command(name="recrop")
def recrop_command(
    store: StoreArgument,
    directories: Directories,
    output: Output,
    magnification: Magnification = 12.0,
    size: Size = 32,
    workers: Workers = None,
) -> None:
    """Crop the classes of a patch store with another magnification or size."""
    from training.data.store.recrop import recrop
    from training.data.store.report import report_store

    spec = PatchSpec(size=size, magnification=magnification)
    recrop(store, directories, output, spec, workers=workers, made_by=command_line())
    typer.echo(report_store(output))


@app.command()
def phototour(
    data_dir: Annotated[
        Path, typer.Option(help="Folder of an unzipped set: liberty, notredame or yosemite.")
    ],
    output: Output,
    size: Size = 32,
) -> None:
    """Import a UBC PhotoTour set; run the command again to resume an interrupted import."""
    from training.data.public.phototour import import_phototour
    from training.data.store.report import report_store

    typer.echo(report_store(import_phototour(data_dir, output, size=size, made_by=command_line())))


@app.command()
def hpatches(
    data_dir: Annotated[
        Path,
        typer.Option(
            help="Folder hpatches-release, with tasks/ of the benchmark in it, beside it or one "
            "folder further up."
        ),
    ],
    output: Output,
    size: Size = 32,
    split: Annotated[
        str | None,
        typer.Option(
            help="Write the stores OUTPUT-train and OUTPUT-test of this split (a, b or c) instead "
            "of one store of all sequences."
        ),
    ] = None,
) -> None:
    """Import the HPatches release; run the command again to resume an interrupted import."""
    from training.data.public.hpatches import import_hpatches, import_split
    from training.data.store.report import report_store

    if split is None:
        stores = [import_hpatches(data_dir, output, size=size, made_by=command_line())]
    else:
        stores = import_split(data_dir, output, split, size=size, made_by=command_line())
    for store in stores:
        typer.echo(report_store(store))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


if __name__ == "__main__":
    app()
