"""The commands `study`, `reproduce`, `blend`, `verify`, `plot` and `bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from training.runs.arguments import (
    DeviceOption,
    RecipeArgument,
    RunArgument,
    SetOption,
    with_device,
)


def study(
    path: Annotated[Path, typer.Argument(help="Path of the study, a .toml file.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the runs and models.")],
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Patch store to compare the variants on; may be repeated. The best point of each "
            "variant's grid is chosen by the validation stores of the recipe, so give others."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(help="Number of pairs drawn from each store of --data.", min=2)
    ] = 40_000,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the tables to this Markdown file.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the differences to the baseline to this PNG file.")
    ] = None,
) -> None:
    """Train and export variants of one recipe with their seeds and grids, and compare them."""
    from matchserve.memory import keep_freed
    from training.lab import summary
    from training.lab.study import load_study, run_study

    keep_freed()
    outcomes = []
    loaded = load_study(path)
    try:
        for outcome in run_study(loaded, out):
            outcomes.append(outcome)
            typer.echo(outcome.line)
    finally:
        rows = summary.grid_rows(outcomes)
        texts = [summary.grid_markdown(rows)]
        typer.echo("\n" + texts[0])
    if data:
        baseline = loaded.study.baseline or loaded.study.variants[0].name
        measured = summary.measure_best(rows, baseline, out, data, limit)
        texts.append(summary.measured_markdown(measured, baseline))
        typer.echo(texts[1])
        if plot is not None:
            summary.plot_measured(measured, baseline, plot)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text("\n".join(texts), encoding="utf-8")


def reproduce(
    paper: Annotated[
        str, typer.Argument(help="Paper to reproduce: sdgm, cdf, adasample or stochastic.")
    ],
    *,
    table: Annotated[
        int | None, typer.Option(help="Number of the table in the paper; all if not given.")
    ] = None,
    phototour: Annotated[
        Path | None,
        typer.Option(help="Folder that holds the PhotoTour sets liberty, notredame, yosemite."),
    ] = None,
    hpatches: Annotated[
        Path | None, typer.Option(help="Folder hpatches-release, with tasks/ beside it.")
    ] = None,
    scale: Annotated[
        float,
        typer.Option(help="Share of the training steps; batch and network shrink too.", min=1e-5),
    ] = 1.0,
    generated: Annotated[
        bool,
        typer.Option("--generated", help="Generate small data sets in the layouts of the real."),
    ] = False,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for stores, runs, curves and tables.")
    ] = Path("runs/reproduce"),
) -> None:
    """Train and score the tables of a paper, and print our numbers beside the printed ones."""
    from matchserve.memory import keep_freed
    from training.lab.papers import find_tables
    from training.lab.reproduce import Reproduction, generate_data, reproduce_row, to_markdown

    tables = find_tables(paper, table)
    if generated:
        phototour, hpatches = generate_data(out / "data")
    job = Reproduction(out, phototour, hpatches, min(scale, 1.0))
    keep_freed()
    for chosen in tables:
        cells = [cell for row in chosen.rows for cell in reproduce_row(row, job)]
        notes = [row.note for row in chosen.rows if row.note]
        if generated:
            notes.append("measured on generated data, which is not comparable with the paper's")
        text = to_markdown(chosen.title, cells, job, notes)
        (out / f"{paper}-table-{chosen.number}.md").write_text(text, encoding="utf-8")
        typer.echo(text)


def blend(
    run: RunArgument,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Run directory to write; it must not exist.")
    ],
    share: Annotated[
        float,
        typer.Option(
            help="Weight of the run in the average; the weights it started from get the rest.",
            min=0,
            max=1,
        ),
    ] = 0.5,
) -> None:
    """Average the weights of a finished run with those it started from.

    The result is a run directory for `export`, or for `init_from` of another recipe.
    """
    from training.lab.blend import blend as blend_run
    from training.runs.directory import find_run

    for name, rate in blend_run(find_run(run), out, share).items():
        typer.echo(f"{name}: FPR95 {100 * rate:.2f} %")
    typer.echo(str(out))


def verify(
    methods: Annotated[
        list[str] | None, typer.Argument(help="Methods to check; all of them by default.")
    ] = None,
) -> None:
    """Check each method: train it briefly on generated patches and compare with known results."""
    from training.lab.verify import verify_all

    table = Table("method", "FPR95", "expected", "FPR95 of SIFT", "seconds", "result")
    results = verify_all(methods or ())
    for r in results:
        band = f"{100 * r.band[0]:.0f} - {100 * r.band[1]:.0f} %"
        outcome = "pass" if r.passed else "FAIL"
        sift = f"{100 * r.sift:.2f} %"
        table.add_row(r.name, f"{100 * r.fpr95:.2f} %", band, sift, f"{r.seconds:.0f}", outcome)
    Console().print(table)
    if not all(r.passed for r in results):
        raise typer.Exit(1)


def plot(
    run: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Folder for the PNG files; RUN/plots by default."),
    ] = None,
) -> None:
    """Plot a run: its curves, the distances of validation pairs, the weights of its loss."""
    from training.lab.plot import plot_run
    from training.runs.directory import find_run

    run = find_run(run)
    for path in plot_run(run, out or run / "plots"):
        typer.echo(str(path))


def bench(
    recipe: RecipeArgument = "sdgm-cpu",
    overrides: SetOption = None,
    device: DeviceOption = None,
    blocks: Annotated[
        int, typer.Option(help="Number of blocks of eight steps to time.", min=1)
    ] = 8,
    data_alone: Annotated[
        bool,
        typer.Option(
            "--data-alone", help="Time only the preparation of batches, on one CPU thread."
        ),
    ] = False,
) -> None:
    """Measure the overhead of the training loop over bare forward, backward and optimiser steps."""
    import tempfile

    from matchserve.memory import keep_freed
    from training.lab.bench import measure, measure_data
    from training.runs.recipe import load_recipe

    keep_freed()
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_recipe(recipe, with_device(overrides, device))
        if data_alone:
            seconds = measure_data(loaded, Path(folder))
            typer.echo(
                f"{recipe}: {seconds:.4f} s of processor time to prepare {loaded.run.batch} pairs"
            )
            return
        speed = measure(loaded, Path(folder), blocks=blocks)
    typer.echo(
        f"loop {speed.loop:.0f} patches/s, bare {speed.bare:.0f} patches/s: "
        f"{100 * speed.share:.1f} % in wall-clock time, "
        f"{100 * speed.cpu_share:.1f} % in processor time"
    )
