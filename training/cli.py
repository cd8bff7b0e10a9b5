"""The command line of `python -m training`, which turns errors into exit codes."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from matchserve.errors import MatchServeError
from training.data import commands as data_commands
from training.errors import RecipeError
from training.evaluation import commands as evaluation_commands
from training.evaluation.calibration import commands as calibration_commands

app = typer.Typer(
    name="training",
    help="Train patch descriptors, evaluate them, and export them for matchserve.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data_commands.app, name="data")
app.command()(evaluation_commands.evaluate)
app.command()(evaluation_commands.compare)
app.command()(evaluation_commands.picture)
app.command()(calibration_commands.calibrate)

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


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"matchserve {version('matchserve')}")
        raise typer.Exit


@app.callback()
def options(
    *,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version of matchserve and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Train patch descriptors, evaluate them, and export them for matchserve."""


@app.command()
def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="Name of a shipped recipe, path of a .toml file, or a run directory to resume."
        ),
    ] = "synthetic",
    overrides: SetOption = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for run directories.")] = Path("runs"),
) -> None:
    """Train a recipe. After an interruption, the same command resumes the run."""
    from matchserve.memory import keep_freed
    from training.runs.directory import RECIPE_FILE, create_run, read_recipe
    from training.runs.loop import train as train_run
    from training.runs.recipe import load_recipe
    from training.runs.run import choose_device
    from training.runtime import distributed

    if (Path(recipe) / RECIPE_FILE).exists():
        if overrides:
            raise RecipeError(
                f"--set {overrides[0]}: the recipe of the run {recipe} cannot be changed; "
                f"to make a new run, train the recipe itself with --set"
            )
        run_dir = Path(recipe)
        device = choose_device(read_recipe(run_dir))
    else:
        loaded = load_recipe(recipe, overrides or ())
        device = choose_device(loaded)
        run_dir = create_run(loaded, out)
    keep_freed()
    distributed.start(device)
    try:
        train_run(run_dir)
    finally:
        distributed.stop()
    if distributed.launched_rank() == 0:
        typer.echo(str(run_dir))


@app.command()
def study(
    path: Annotated[Path, typer.Argument(help="Path of the study, a .toml file.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the runs and models.")],
) -> None:
    """Train and export variants of one recipe, to compare them."""
    from matchserve.memory import keep_freed
    from training.lab.study import load_study, run_study

    keep_freed()
    table = Table("model", "MMAC", "steps", "batch", "minutes", "validation FPR95")
    loaded = load_study(path)
    try:
        for outcome in run_study(loaded, out):
            rates = ", ".join(
                f"{store} {100 * rate:.2f} %" for store, rate in outcome.fpr95.items()
            )
            minutes = f"{outcome.seconds / 60:.1f}" if outcome.seconds else "finished"
            table.add_row(
                outcome.model.name,
                f"{outcome.mmac:.2f}",
                str(outcome.steps),
                str(outcome.batch),
                minutes,
                rates,
            )
    finally:
        if table.row_count:
            Console().print(table)


@app.command()
def blend(
    run: RunArgument,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Run directory to write; it must not exist.")
    ],
    share: Annotated[
        float,
        typer.Option(
            help="Weight of the run in the average; the other weights get the rest.",
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


@app.command()
def export(
    run: RunArgument,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Model directory to write; it must not exist.")
    ],
    *,
    int8: Annotated[
        bool,
        typer.Option("--int8", help="Quantise to int8; refused if the model loses accuracy."),
    ] = False,
    max_loss: Annotated[
        float,
        typer.Option(help="Largest increase of FPR95 by --int8, in percentage points."),
    ] = 0.5,
    domain_size: Annotated[
        float,
        typer.Option(
            help="Average the descriptors of two patches, the second this many times as wide; "
            "1 uses one patch.",
            min=1,
            max=2,
        ),
    ] = 1.0,
    licence: Annotated[
        str, typer.Option(help="Licence of the weights, for the card.")
    ] = "Apache-2.0",
    method: Annotated[str, typer.Option(help="How the model was made, for the card.")] = "",
    trained_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Name and licence of a training data set, for the card. Can be repeated."
        ),
    ] = None,
    notes: Annotated[str, typer.Option(help="Other remarks, for the card.")] = "",
) -> None:
    """Export a run as a model that matchserve serves, after checking that both agree."""
    from training.export.cards import CardText
    from training.export.export import export as export_run
    from training.export.quantise import Gate, export_int8
    from training.runs.directory import find_run, read_recipe
    from training.runs.sources import open_sources
    from training.runs.validation import validation_sets

    run = find_run(run)
    text = CardText(licence, method, tuple(trained_on or ()), notes)
    if not int8:
        card, parity = export_run(run, out, text, domain_size=domain_size)
        bits = f", {parity.bits} bits differ" if card.kind == "binary" else ""
        typer.echo(
            f"{out}: differs from the network by at most {parity.difference:.1e} "
            f"on {parity.patches} patches{bits}"
        )
        return
    if domain_size != 1.0:
        raise RecipeError(
            "--domain-size cannot be combined with --int8: the validation stores have only the "
            "smaller patches"
        )
    data = read_recipe(run).data
    stores = open_sources(data.validation, run.parent / "stores")
    sets = validation_sets(stores, data.validation_pairs)
    gate = Gate(fpr95_points=max_loss)
    _, loss = export_int8(run, out, text, validation=sets, gate=gate)
    typer.echo(f"{out}: mean cosine {loss.cosine:.5f} to the float descriptors")
    for name, (before, after) in loss.fpr95.items():
        typer.echo(f"{name}: FPR95 {100 * before:.2f} % float, {100 * after:.2f} % int8")


@app.command()
def publish(
    models: Annotated[Path, typer.Argument(help="Folder of model directories.")],
    result: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TITLE=FILE",
            help="Title and file of a result of `evaluate --json`. Can be repeated.",
        ),
    ] = None,
) -> None:
    """Write measured figures into the cards of models, and tables into their README.md."""
    from training.export.publish import publish as publish_results

    titled = [entry.partition("=") for entry in result or ()]
    for title, _, path in titled:
        if not title or not path:
            raise RecipeError(f"--result {title}: expected TITLE=FILE")
    for line in publish_results(models, {title: Path(path) for title, _, path in titled}):
        typer.echo(line)


@app.command()
def networks() -> None:
    """List the networks, with their parameters and millions of multiply-accumulates per patch."""
    from training.networks import NETWORKS, NetworkOptions, build_network
    from training.networks.cost import mac_count, parameter_count

    table = Table("network", "parameters", "MMAC", title="32 x 32 patches, 128 dimensions")
    for name in NETWORKS:
        net = build_network(NetworkOptions(name=name), 32)
        table.add_row(name, f"{parameter_count(net):,}", f"{mac_count(net) / 1e6:.2f}")
    Console().print(table)


@app.command()
def recipes() -> None:
    """List the shipped recipes."""
    from training.recipes.reading import shipped_recipes

    table = Table("recipe", "description")
    for name, line in shipped_recipes().items():
        table.add_row(name, line)
    Console().print(table)


@app.command()
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


@app.command()
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


@app.command()
def bench(
    recipe: RecipeArgument = "sdgm-cpu",
    overrides: SetOption = None,
    blocks: Annotated[int, typer.Option(help="Number of blocks of eight steps to time.")] = 8,
) -> None:
    """Measure the overhead of the training loop over bare forward, backward and optimiser steps."""
    import tempfile

    from matchserve.memory import keep_freed
    from training.lab.bench import measure
    from training.runs.recipe import load_recipe

    keep_freed()
    with tempfile.TemporaryDirectory() as folder:
        speed = measure(load_recipe(recipe, overrides or ()), Path(folder), blocks=blocks)
    typer.echo(
        f"loop {speed.loop:.0f} patches/s, bare {speed.bare:.0f} patches/s: "
        f"{100 * speed.share:.1f} % in wall-clock time, "
        f"{100 * speed.cpu_share:.1f} % in processor time"
    )


def main() -> None:
    """Run the command line; print one line and exit with a code for every expected error."""
    try:
        app()
    except MatchServeError as error:
        sys.stderr.write(f"error: {error.message}\n")
        sys.exit(error.exit_code)
