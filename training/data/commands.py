"""The command line of patch stores and sequences: `python -m training data …`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from matchserve.types import PatchSpec
from training.errors import DataError

# Commands import what they need: `train` should not wait for pycolmap.
app = typer.Typer(
    help="Make, inspect and divide patch stores; make sequences to measure on.",
    no_args_is_help=True,
    add_completion=False,
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
    ] = "easy,medium,medium,hard,hard,night",
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
    from training.data.photos.correspond import Tolerance
    from training.data.photos.photos import PhotoOptions, build_photos
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
    build_photos(directories, output, options, workers=workers, made_by=_command())
    typer.echo(f"made in {time.perf_counter() - start:.0f} s")
    typer.echo(report_store(output))


@app.command()
def scenes(
    directories: Directories,
    output: Output,
    workspace: Annotated[
        Path, typer.Option(help="Where reconstructions are kept, and found again.")
    ],
    magnification: Magnification = 12.0,
    size: Size = 32,
    model: Annotated[str, typer.Option(help="Descriptor to match with.")] = "rootsift",
    max_keypoints: Annotated[int, typer.Option(help="Per image.")] = 6144,
    min_images: Annotated[
        int, typer.Option(help="Images that must have matched a point.", min=2)
    ] = 3,
    max_error: Annotated[float, typer.Option(help="Reprojection error in pixels.")] = 2.0,
    max_patches: Annotated[int, typer.Option(help="Per class, the most different ones.")] = 8,
    seed: Annotated[int, typer.Option(help="Of RANSAC and the mapper.")] = 0,
    workers: Workers = None,
) -> None:
    """Classes from real multi-view sets, verified by structure from motion."""
    from training.data.scenes.scenes import SceneOptions, build_scenes
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
        directories, output, options, workspace=workspace, workers=workers, made_by=_command()
    )
    typer.echo("\n".join(lines))
    typer.echo(f"made in {time.perf_counter() - start:.0f} s")
    typer.echo(report_store(output))


@app.command()
def sequences(
    directories: Directories,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")],
    only: Annotated[
        Path | None, typer.Option(help="A store: only the photographs that it was made of.")
    ] = None,
    levels: Annotated[
        str, typer.Option(help="One level a view, five at most: easy, medium, hard, night.")
    ] = "easy,medium,medium,hard,night",
    seed: Annotated[int, typer.Option(help="Of every view; not that of the store.")] = 77,
    min_length: Annotated[
        int, typer.Option(help="Photographs with a shorter longer side are left out.")
    ] = 600,
    max_side: MaxSide = 1024,
    workers: Workers = None,
) -> None:
    """Homography sequences of photographs under synthetic views, for `evaluate`."""
    from training.data.photos.sequences import SequenceOptions, write_sequences
    from training.data.store.divide import used_scenes
    from training.data.store.reader import PatchStore

    options = SequenceOptions(_words(levels), seed=seed, min_length=min_length, max_side=max_side)
    names = None if only is None else used_scenes(PatchStore.open(only))
    written = write_sequences(directories, output, options, only=names, workers=workers)
    typer.echo(f"{output}: {written} sequences of {len(options.levels) + 1} images")


@app.command()
def info(
    stores: Annotated[list[Path], typer.Argument(help="Patch stores.", show_default=False)],
    plot: Annotated[Path | None, typer.Option(help="Draw the distributions as PNG.")] = None,
) -> None:
    """Counts, class sizes, scenes and SIFT's FPR95 of stores."""
    from training.data.store.report import plot_stores, report_store, scene_table

    for store in stores:
        typer.echo(f"{store}\n{report_store(store)}\n{scene_table(store)}")
    if plot is not None:
        plot_stores(stores, plot)


@app.command()
def merge(
    stores: Annotated[list[Path], typer.Argument(help="Patch stores.", show_default=False)],
    output: Output,
) -> None:
    """All classes of several stores in one."""
    from training.data.store.divide import merge_stores
    from training.data.store.report import report_store

    typer.echo(report_store(merge_stores(stores, output, made_by=_command())))


@app.command()
def split(
    store: StoreArgument,
    train: Annotated[Path, typer.Argument(help="The store to write the others to.")],
    validation: Annotated[Path, typer.Argument(help="The store to write held-out scenes to.")],
    scene: Annotated[list[str] | None, typer.Option(help="Hold out this scene.")] = None,
    count: Annotated[int | None, typer.Option(help="Hold out this many at random.")] = None,
    seed: Annotated[int, typer.Option(help="Of the random choice.")] = 0,
) -> None:
    """Hold out whole scenes; a scene is never on both sides."""
    from training.data.store.divide import random_scenes, split_store
    from training.data.store.reader import PatchStore
    from training.data.store.report import report_store

    if (scene is None) == (count is None):
        raise DataError("a split needs either --scene, once or more, or --count")
    held = scene if scene else random_scenes(PatchStore.open(store), count or 0, seed)
    for path in split_store(store, train, validation, held, made_by=_command()):
        typer.echo(f"{path}\n{report_store(path)}")


@app.command()
def show(
    store: StoreArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG to write.")],
    classes: Annotated[int, typer.Option(help="How many.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Of the choice.")] = 0,
) -> None:
    """A contact sheet of random classes, to be looked at."""
    from training.data.store.reader import PatchStore
    from training.data.store.sheet import contact_sheet, write_sheet

    write_sheet(output, contact_sheet(PatchStore.open(store), classes=classes, seed=seed))


@app.command(name="recrop")
def recrop_command(
    store: StoreArgument,
    directories: Directories,
    output: Output,
    magnification: Magnification = 12.0,
    size: Size = 32,
    workers: Workers = None,
) -> None:
    """The same classes with another magnification or size; nothing is detected again."""
    from training.data.store.recrop import recrop
    from training.data.store.report import report_store

    spec = PatchSpec(size=size, magnification=magnification)
    recrop(store, directories, output, spec, workers=workers, made_by=_command())
    typer.echo(report_store(output))


@app.command()
def phototour(
    data_dir: Annotated[Path, typer.Option(help="An unpacked set: liberty, notredame, …")],
    output: Output,
    size: Size = 32,
) -> None:
    """Import a UBC PhotoTour set; the same command goes on after a break."""
    from training.data.public.phototour import import_phototour
    from training.data.store.report import report_store

    typer.echo(report_store(import_phototour(data_dir, output, size=size, made_by=_command())))


@app.command()
def hpatches(
    data_dir: Annotated[Path, typer.Option(help="hpatches-release, with tasks/ in or by it.")],
    output: Output,
    size: Size = 32,
) -> None:
    """Import the HPatches release; the same command goes on after a break."""
    from training.data.public.hpatches import import_hpatches
    from training.data.store.report import report_store

    typer.echo(report_store(import_hpatches(data_dir, output, size=size, made_by=_command())))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _command() -> str:
    """The command as it was given, without the folders of this machine before the last."""
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return " ".join(words if words[:1] == ["data"] else ["data", *words])


if __name__ == "__main__":
    app()
