"""The command line of `python -m training`, which turns errors into exit codes."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from matchserve.errors import MatchServeError
from training.data import commands as data_commands
from training.detector import commands as detector_commands
from training.evaluation import commands as evaluation_commands
from training.evaluation.calibration import commands as calibration_commands
from training.evaluation.confidence import commands as confidence_commands
from training.export import commands as export_commands
from training.lab import commands as lab_commands
from training.lab.tuning.commands import tune
from training.retrieval import commands as retrieval_commands
from training.runs.arguments import DeviceOption, SetOption, with_device

app = typer.Typer(
    name="training",
    help="Train patch descriptors, evaluate them, and export them for matchserve.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


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
            help="Name of a shipped recipe, path of a .toml file, or a run directory to resume. "
            "A finished run is extended by --set run.steps=N."
        ),
    ] = "synthetic",
    overrides: SetOption = None,
    device: DeviceOption = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for run directories.")] = Path("runs"),
) -> None:
    """Train a recipe. After an interruption, the same command resumes the run."""
    from matchserve.memory import keep_freed
    from training.runs.changes import change_run
    from training.runs.directory import RECIPE_FILE, create_run, read_recipe
    from training.runs.loop import train as train_run
    from training.runs.recipe import load_recipe
    from training.runs.run import choose_device
    from training.runtime import distributed

    overrides = with_device(overrides, device)
    if (Path(recipe) / RECIPE_FILE).exists():
        run_dir = change_run(Path(recipe), overrides)
        chosen = choose_device(read_recipe(run_dir))
    else:
        loaded = load_recipe(recipe, overrides)
        chosen = choose_device(loaded)
        run_dir = create_run(loaded, out)
    keep_freed()
    distributed.start(chosen)
    try:
        train_run(run_dir)
    finally:
        distributed.stop()
    if distributed.launched_rank() == 0:
        typer.echo(str(run_dir))


@app.command()
def methods() -> None:
    """List the losses and samplers, those of plug-ins too, with their options and defaults."""
    from training.methods import METHODS, SAMPLERS
    from training.runs.plugins import load_plugins

    load_plugins()
    table = Table("kind", "name", "defined in", "options")
    for kind, registry in (("loss", METHODS), ("sampler", SAMPLERS)):
        for name, entry in registry.items():
            fields = entry.options.model_fields.items()
            shown = ", ".join(f"{key}={field.default}" for key, field in fields if key != "name")
            table.add_row(kind, name, entry.options.__module__, shown)
    Console().print(table)


@app.command()
def networks() -> None:
    """List the networks, with their parameters and millions of multiply-accumulates per patch."""
    from training.networks import NETWORKS, NetworkOptions, build_network
    from training.networks.cost import mac_count, parameter_count
    from training.runs.plugins import load_plugins

    load_plugins()
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


app.add_typer(data_commands.app, name="data")
app.add_typer(detector_commands.app, name="detector")
app.add_typer(retrieval_commands.app, name="retrieval")
for command in (
    tune,
    export_commands.export,
    evaluation_commands.evaluate,
    evaluation_commands.compare,
    evaluation_commands.picture,
    calibration_commands.calibrate,
    confidence_commands.confidence,
    export_commands.publish,
    lab_commands.blend,
    lab_commands.study,
    lab_commands.reproduce,
    lab_commands.plot,
    lab_commands.verify,
    lab_commands.bench,
):
    app.command()(command)


app.command(name="import")(export_commands.import_weights)


def main() -> None:
    """Run the command line; print one line and exit with a code for every expected error."""
    try:
        app()
    except MatchServeError as error:
        sys.stderr.write(f"error: {error.message}\n")
        sys.exit(error.exit_code)
    except OSError as error:
        # A full disk or a folder without permission: nothing complete is lost.
        place = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"error: {place}{error.strerror or error}\n")
        sys.exit(os.EX_IOERR)
