"""The command `python -m training tune`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from training.errors import ExportRefused

PICTURE_FILE = "tuning.png"
TABLE_FILE = "tuning.txt"


def tune(
    photos: Annotated[Path, typer.Argument(help="Folder with photographs, 50 or more.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Model directory to write; it must not exist.")
    ],
    *,
    start: Annotated[str, typer.Option(help="Shipped model to tune.")] = "compact",
    steps: Annotated[int, typer.Option(help="Number of training steps.", min=1)] = 600,
    batch: Annotated[int, typer.Option(help="Number of pairs in a step.", min=2)] = 256,
    held_out: Annotated[
        float,
        typer.Option(
            help="Share of the photographs that are not trained on, 5 to 20 of them; both models "
            "are compared on them.",
            min=0.05,
            max=0.9,
        ),
    ] = 0.2,
    max_keypoints: Annotated[
        int, typer.Option(help="Keypoints per image in the comparison.", min=16)
    ] = 1024,
    seed: Annotated[int, typer.Option(help="Random seed of the split and the training.")] = 0,
    workers: Annotated[
        int | None, typer.Option(help="Number of processes that cut patches.", min=1)
    ] = None,
    workspace: Annotated[
        Path | None,
        typer.Option(help="Folder for intermediate results.", show_default="OUT-work"),
    ] = None,
) -> None:
    """Tune a shipped model on your photographs, compare both, and keep the better one.

    After an interruption, the same command continues.
    """
    if out.exists():
        raise ExportRefused(f"{out}: already exists; remove it first, or write another folder")
    # Imported here: PyTorch takes seconds to load.
    from matchserve.memory import keep_freed
    from training.data.images import list_images
    from training.evaluation.picture import picture
    from training.lab.tuning import steps as tuning
    from training.lab.tuning.verdict import judge

    keep_freed()
    clock = _Clock()
    options = tuning.TuneOptions(
        start=start, steps=steps, batch=batch, held_out=held_out,
        max_keypoints=max_keypoints, seed=seed, workers=workers,
    )  # fmt: skip
    place = tuning.Workspace(workspace or out.with_name(f"{out.name}-work"))
    source = tuning.start_directory(start)
    apart = tuning.make_plan(photos, place, options)
    clock.say(f"1/4 cutting patches; {len(apart)} photographs are kept apart for the comparison")
    trained, _ = tuning.make_patches(photos, place, apart, options)
    clock.say(f"2/4 training {start} on {trained.patch_count} patches, {steps} steps")
    run_dir = tuning.train_model(place, options)
    clock.say("3/4 exporting")
    tuning.export_model(place, run_dir, out.name, options)
    clock.say("4/4 matching views of the photographs kept apart, before and after")
    verdict = judge(tuning.compare_models(photos, place, apart, options), seed)
    drawn = place.path / PICTURE_FILE
    models = [f"{source}/", f"{place.tuned}/"]
    titles = ["before", "tuned" if verdict.is_better else "tuned (not kept)"]
    photo = list_images([photos])[apart[0]]
    picture(photo, models, drawn, level="medium", seed=seed, titles=titles)
    text = (
        f"{verdict.groups} photographs that were not trained on, five synthetic views of each\n"
        f"{verdict.table()}\n"
    )
    (place.path / TABLE_FILE).write_text(text, encoding="utf-8")
    files = {name: place.path / name for name in (PICTURE_FILE, TABLE_FILE)}
    tuning.keep_model(place.tuned if verdict.is_better else source, out, files)
    clock.say("done")
    typer.echo(f"\n{text}\n{verdict.text(start, str(out))}")
    typer.echo(
        f"Picture: {out / PICTURE_FILE}. Use it: matchserve match a.jpg b.jpg --model {_path(out)}"
    )


class _Clock:
    """Prints what is being done, with the minutes since the beginning, to standard error."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        typer.echo(f"[{(time.monotonic() - self._began) / 60:4.1f} min] {text}", err=True)


def _path(out: Path) -> str:
    """Return a model directory as `--model` reads it: with a separator."""
    return str(out) if "/" in str(out) else f"./{out}"
