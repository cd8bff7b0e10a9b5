"""`matchserve reconstruct` and `matchserve collection`."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer
from rich.markup import escape

from matchserve import defaults
from matchserve.cli.options import (
    Exif,
    MaxKeypoints,
    MaxSide,
    Model,
    ModelsDir,
    ProviderOption,
    Upright,
)
from matchserve.cli.output import STANDARD_OUTPUT, say, write_json
from matchserve.collections.cameras import CameraRule
from matchserve.collections.collection import DEFAULT_OPTIONS, Collection
from matchserve.collections.dry_run import estimate
from matchserve.collections.mapping import DEFAULT_SEED
from matchserve.collections.parts import parse_part
from matchserve.collections.pool import STOP_SIGNALS, kill_workers
from matchserve.collections.progress import show
from matchserve.collections.report import Report, make_report, summary
from matchserve.collections.shards import Verifier
from matchserve.collections.sources import Tiling
from matchserve.limits import LIBRARY_LIMITS
from matchserve.memory import share_heaps
from matchserve.types import CollectionVerify
from matchserve.vision.geometry import VerifyOptions
from matchserve.vision.matching import MatchOptions

SOME_REFUSED = 65

app = typer.Typer(no_args_is_help=True, help="Describe, match and export a folder of images.")

Folder = Annotated[Path, typer.Argument(help="Folder of JPEG, PNG, WebP or TIFF files.")]
Output = Annotated[
    str,
    typer.Option(
        "--output", "-o",
        help="Folder for all results, or an address such as s3://bucket/name, gs:// or az://; the "
        "same command continues a run that was stopped.",
    ),
]  # fmt: skip
WorkspaceFolder = Annotated[
    str, typer.Argument(help="Output folder, or address, of `collection match`.")
]
Dask = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Address of a Dask scheduler whose workers do the work, e.g. tcp://scheduler:8786.",
    ),
]
Pairs = Annotated[
    str,
    typer.Option(
        help="Pairs to match: exhaustive; sequential:N, the next N by name, with ,loops also "
        "similar images farther on; retrieval:K, the K most similar; spatial:K,Dm, the K nearest "
        "by GPS within D metres; list:FILE; or several of these joined by +. auto is exhaustive "
        "up to 200 images, "
        "then spatial if most images have a GPS position, else retrieval."
    ),
]
CameraOption = Annotated[
    Literal["auto", "per-image", "per-folder", "single"],
    typer.Option(
        help="Images that share a camera; auto: those of one folder, size and EXIF camera."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of worker processes, fewer if the memory is small.",
        show_default="processors",
    ),
]
Ratio = Annotated[
    float | None,
    typer.Option(
        help="Maximum ratio of nearest to second-nearest distance (Lowe's ratio test).",
        show_default="no test",
    ),
]
Verify = Annotated[
    CollectionVerify,
    typer.Option(help="Geometry that the matches of each pair are checked against."),
]
VerifyWith = Annotated[
    Verifier,
    typer.Option(
        help="What estimates the geometry of each pair: matchserve, or colmap (needs pycolmap)."
    ),
]
TilesOption = Annotated[
    Tiling,
    typer.Option(
        help=f"Images that are described at full resolution in windows, with pyvips: auto those of "
        f"more than {LIBRARY_LIMITS.max_pixels // 10**6} megapixels, or all; never refuses images "
        "that are too large."
    ),
]
Store = Annotated[
    Path | None,
    typer.Option(
        help="Folder of features that several collections share.",
        show_default="inside the output folder",
    ),
]
RefineOption = Annotated[
    Literal["none", "affine"],
    typer.Option(
        help="How matched points are refined to a fraction of a pixel for COLMAP; none keeps the "
        "keypoints where they were found."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the pairs, time and bytes to expect, and stop.")
]
JsonProgress = Annotated[
    bool, typer.Option("--json", help="Print progress to standard error as lines of JSON.")
]


def reconstruct(
    folder: Folder,
    *,
    output: Output,
    pairs: Pairs = "auto",
    camera: CameraOption = "auto",
    mapper: Annotated[
        Literal["auto", "incremental", "global"],
        typer.Option(help="COLMAP's mapper; auto is incremental up to 500 images, then global."),
    ] = "auto",
    model: Model = defaults.MODEL,
    max_keypoints: MaxKeypoints = defaults.COLLECTION_MAX_KEYPOINTS,
    max_side: MaxSide = defaults.MAX_SIDE,
    upright: Upright = False,
    exif: Exif = "ignore",
    tiles: TilesOption = "auto",
    ratio: Ratio = None,
    refine: RefineOption = defaults.REFINE,
    verify_with: VerifyWith = "matchserve",
    workers: Workers = None,
    seed: Annotated[int, typer.Option(help="Random seed of the COLMAP mapper.")] = DEFAULT_SEED,
    store: Store = None,
    dry_run: DryRun = False,
    json: JsonProgress = False,
    models_dir: ModelsDir = None,
    provider: ProviderOption = "auto",
) -> None:
    """Reconstruct a folder of photographs: a COLMAP model and database, and a report."""
    from matchserve.collections.reconstruct import ReconstructOptions
    from matchserve.collections.reconstruct import reconstruct as run

    options = replace(
        DEFAULT_OPTIONS,
        detect=replace(DEFAULT_OPTIONS.detect, max_keypoints=max_keypoints, upright=upright),
        match=MatchOptions(ratio=ratio),
        max_side=max_side,
        exif=exif,
    )
    collection = Collection(
        output, images=folder, model=model, options=options, store=store,
        models_dir=models_dir, provider=provider, verify_with=verify_with,
        tiles=tiles,
    )  # fmt: skip
    if dry_run:
        say(escape(estimate(collection, pairs, workers).text()))
        return
    _announce_stop(output)
    share_heaps(1)
    chosen = ReconstructOptions(camera=camera, mapper=mapper, seed=seed, refine=refine)
    show(run(collection, chosen, pairs=pairs, workers=workers), as_json=json)
    report = make_report(collection)
    place = collection.workspace
    say(
        f"{escape(summary(report))}\n[bold]{escape(str(place.sparse / '0'))}[/], "
        f"{escape(str(place.database))}, {escape(str(place.root / 'report.png'))}"
    )
    _exit_if_refused(collection, report)


@app.command("match")
def match_folder(
    folder: Folder,
    *,
    output: Output,
    pairs: Pairs = "auto",
    model: Model = defaults.MODEL,
    max_keypoints: MaxKeypoints = defaults.COLLECTION_MAX_KEYPOINTS,
    max_side: MaxSide = defaults.MAX_SIDE,
    upright: Upright = False,
    exif: Exif = "ignore",
    tiles: TilesOption = "auto",
    ratio: Ratio = None,
    verify: Verify = defaults.VERIFY,
    verify_with: VerifyWith = "matchserve",
    workers: Workers = None,
    store: Store = None,
    dask: Dask = None,
    part: Annotated[
        str | None,
        typer.Option(
            help="Do one part of the work, e.g. 3/64 for number 3 of 0 to 63, so that several "
            "machines can share it; then run once without this option."
        ),
    ] = None,
    dry_run: DryRun = False,
    json: JsonProgress = False,
    models_dir: ModelsDir = None,
    provider: ProviderOption = "auto",
) -> None:
    """Describe and match the images of a folder; continue a run that was stopped."""
    options = replace(
        DEFAULT_OPTIONS,
        detect=replace(DEFAULT_OPTIONS.detect, max_keypoints=max_keypoints, upright=upright),
        match=MatchOptions(ratio=ratio),
        verify=VerifyOptions(verify),
        max_side=max_side,
        exif=exif,
    )
    collection = Collection(
        output, images=folder, model=model, options=options, store=store,
        models_dir=models_dir, provider=provider, verify_with=verify_with,
        tiles=tiles,
    )  # fmt: skip
    if dry_run:
        say(escape(estimate(collection, pairs, workers).text()))
        return
    _announce_stop(output)
    share_heaps(1)
    if part is not None:
        show(
            collection.match(pairs, workers=workers, part=parse_part(part), dask=dask), as_json=json
        )
        return
    show(collection.match(pairs, workers=workers, dask=dask), as_json=json)
    report = make_report(collection)
    say(f"{escape(summary(report))}\n[bold]{escape(str(output))}[/]")
    _exit_if_refused(collection, report)


@app.command()
def status(
    workspace: WorkspaceFolder,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the status as JSON.")] = False,
) -> None:
    """Print how far a collection is: images, pairs, components."""
    report = make_report(Collection.open(workspace))
    if json:
        write_json(STANDARD_OUTPUT, report.fields())
    else:
        say(escape(f"{report.pairs_matched} of {report.pairs} pairs matched\n{summary(report)}"))


@app.command("report")
def report_command(workspace: WorkspaceFolder) -> None:
    """Write report.json and report.png, with the view graph, to the workspace."""
    from matchserve.collections.reconstruct import write_report

    collection = Collection.open(workspace)
    report = write_report(collection)
    say(escape(f"{summary(report)}\n{collection.workspace.root / 'report.png'}"))


@app.command()
def export(
    workspace: WorkspaceFolder,
    *,
    to: Annotated[
        Literal["colmap", "hloc", "npz", "openmvg"],
        typer.Option(
            "--format",
            help="colmap: database.db; hloc: features.h5, matches.h5 and pairs.txt; npz: one file "
            "for each image and pair; openmvg: text files and sfm_data.json.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="File to write for colmap, folder for the others."),
    ],
    camera: CameraOption = "auto",
    refine: RefineOption = defaults.REFINE,
    workers: Workers = None,
) -> None:
    """Export the features and matches of a collection to another program."""
    from matchserve.collections.exports import export_to

    rule: CameraRule = camera
    collection = Collection.open(workspace)
    show(export_to(collection, to, output, camera=rule, refine=refine, workers=workers))
    say(f"[bold]{escape(str(output))}[/]")


def _exit_if_refused(collection: Collection, report: Report) -> None:
    """End with an exit code that says that some files were not used."""
    rows = [row for row in collection.images() if row.state == "refused"]
    refused = {row.name: f"{row.code}, {row.detail}" for row in rows} | collection.scan.refused
    for name, reason in list(refused.items())[:20]:
        say(escape(f"not used: {name!r}: {reason}"))
    if len(refused) > 20:
        say(f"and {len(refused) - 20} more")
    if report.refused or collection.scan.refused:
        raise typer.Exit(SOME_REFUSED)


def _announce_stop(output: str) -> None:
    """Print how to continue when Ctrl-C or SIGTERM stops the run, and end at once.

    Every file is written completely or not at all, so nothing has to be tidied up.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        kill_workers()
        os.write(
            sys.stderr.fileno(), f"\nstopped; run the same command to continue {output}\n".encode()
        )
        os._exit(128 + number)

    # Python removes the semaphores that this process leaves, and would warn about each stop.
    quiet = [os.environ.get("PYTHONWARNINGS", ""), "ignore:resource_tracker:UserWarning"]
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, quiet))
    for number in STOP_SIGNALS:
        signal.signal(number, stop)
