"""`python -m training`: the commands, and the one place where errors become exit codes."""

from __future__ import annotations

import sys
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
    help="Learn patch descriptors, measure them, export them for matchserve.",
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
    typer.Option("--set", help="Override one value of the recipe: optim.lr=0.5. Repeatable."),
]
RunArgument = Annotated[Path, typer.Argument(help="A run directory.")]


@app.command()
def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name or .toml path, or a run directory to go on with.")
    ] = "synthetic",
    overrides: SetOption = None,
    out: Annotated[Path, typer.Option("--out", help="Where runs are kept.")] = Path("runs"),
) -> None:
    """Train a recipe; the same command goes on where it was stopped."""
    from matchserve.memory import keep_freed
    from training.runs.loop import train as train_run
    from training.runs.recipe import load_recipe
    from training.runs.run import (
        RECIPE_FILE,
        choose_device,
        create_run,
        read_recipe,
    )
    from training.runtime import distributed

    if (Path(recipe) / RECIPE_FILE).exists():
        if overrides:
            raise RecipeError(
                f"--set {overrides[0]}: the recipe of the run {recipe} cannot be changed; "
                f"train the recipe itself with --set for another run"
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
    name: Annotated[str, typer.Argument(help="A study's name (methods, networks) or .toml path.")],
    out: Annotated[Path, typer.Option("--out", help="Where its runs and models are kept.")],
) -> None:
    """Train variants of one recipe and export them, to be measured side by side."""
    from matchserve.memory import keep_freed
    from training.lab.study import load_study, run_study

    keep_freed()
    table = Table("model", "MMAC", "steps", "batch", "minutes", "validation FPR95")
    loaded = load_study(name)
    try:
        for outcome in run_study(loaded, out):
            rates = ", ".join(
                f"{store} {100 * rate:.2f} %" for store, rate in outcome.fpr95.items()
            )
            minutes = f"{outcome.seconds / 60:.1f}" if outcome.seconds else "before"
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
    out: Annotated[Path, typer.Option("-o", "--out", help="Run directory to write.")],
    share: Annotated[
        float, typer.Option(help="Of what the run learned; the rest is its start.", min=0, max=1)
    ] = 0.5,
) -> None:
    """Average a finished run with what it started from; export takes the result."""
    from training.lab.blend import blend as blend_run

    for name, rate in blend_run(run, out, share).items():
        typer.echo(f"{name}: FPR95 {100 * rate:.2f} %")
    typer.echo(str(out))


@app.command()
def export(
    run: RunArgument,
    out: Annotated[Path, typer.Option("-o", "--out", help="Model directory to write.")],
    *,
    int8: Annotated[bool, typer.Option("--int8", help="Quantise; refused if it loses.")] = False,
    max_loss: Annotated[
        float, typer.Option(help="FPR95 that int8 may lose, in points of a hundred.")
    ] = 0.5,
    domain_size: Annotated[
        float,
        typer.Option(
            help="Also describe a square this many times as wide, and average; 1 for none.",
            min=1,
            max=2,
        ),
    ] = 1.0,
    licence: Annotated[str, typer.Option(help="Licence of the weights.")] = "Apache-2.0",
    method: Annotated[str, typer.Option(help="How it was made, for the card.")] = "",
    trained_on: Annotated[
        list[str] | None, typer.Option(help="Name and licence of a data set, for the card.")
    ] = None,
    notes: Annotated[str, typer.Option(help="Anything else, for the card.")] = "",
) -> None:
    """Write a run's network as a model that matchserve serves, after comparing the two."""
    from training.export.export import CardText
    from training.export.export import export as export_run
    from training.export.quantise import Gate, export_int8
    from training.runs.run import read_recipe
    from training.runs.sources import open_sources
    from training.runs.validation import validation_sets

    text = CardText(licence, method, tuple(trained_on or ()), notes)
    if not int8:
        card, parity = export_run(run, out, text, domain_size=domain_size)
        bits = f", {parity.bits} bits differ" if card.kind == "binary" else ""
        typer.echo(f"{out}: differs by {parity.difference:.1e} on {parity.patches} patches{bits}")
        return
    if domain_size != 1.0:
        raise RecipeError("--domain-size: not with --int8, which is judged on stores as cut before")
    data = read_recipe(run).data
    stores = open_sources(data.validation, run.parent / "stores")
    sets = validation_sets(stores, data.validation_pairs)
    gate = Gate(fpr95_points=max_loss)
    _, loss = export_int8(run, out, text, validation=sets, gate=gate)
    typer.echo(f"{out}: mean cosine {loss.cosine:.5f} to float")
    for name, (before, after) in loss.fpr95.items():
        typer.echo(f"{name}: FPR95 {100 * before:.2f} % float, {100 * after:.2f} % int8")


@app.command()
def publish(
    models: Annotated[Path, typer.Argument(help="The folder of model directories.")],
    result: Annotated[
        list[str] | None, typer.Option(help="TITLE=FILE, of `evaluate --json`; repeatable.")
    ] = None,
) -> None:
    """Write measured figures into the models' cards, and the cards' tables into README.md."""
    from training.export.publish import publish as publish_results

    titled = [entry.partition("=") for entry in result or ()]
    for title, _, path in titled:
        if not title or not path:
            raise RecipeError(f"--result {title}: expected TITLE=FILE")
    for line in publish_results(models, {title: Path(path) for title, _, path in titled}):
        typer.echo(line)


@app.command()
def networks() -> None:
    """List the networks with their parameters and multiply-accumulates per patch."""
    from training.networks import NETWORKS, NetworkOptions, build_network
    from training.networks.cost import mac_count, parameter_count

    table = Table("network", "parameters", "MMAC", title="32 x 32 patches, 128 dimensions")
    for name in NETWORKS:
        net = build_network(NetworkOptions(name), 32)
        table.add_row(name, f"{parameter_count(net):,}", f"{mac_count(net) / 1e6:.2f}")
    Console().print(table)


@app.command()
def recipes() -> None:
    """List the recipes that ship here."""
    from training.runs.recipe import available

    table = Table("recipe", "what it is")
    for name, line in available().items():
        table.add_row(name, line)
    Console().print(table)


@app.command()
def verify(
    methods: Annotated[
        list[str] | None, typer.Argument(help="Which methods; all without any.")
    ] = None,
) -> None:
    """Train each method briefly on generated patches: FPR95 beside SIFT's, pass or fail."""
    from training.lab.verify import verify_all

    table = Table("method", "FPR95", "band", "SIFT", "seconds", "")
    results = verify_all(methods or ())
    for r in results:
        band = f"{100 * r.band[0]:.0f} - {100 * r.band[1]:.0f} %"
        verdict = "pass" if r.passed else "FAIL"
        sift = f"{100 * r.sift:.2f} %"
        table.add_row(r.name, f"{100 * r.fpr95:.2f} %", band, sift, f"{r.seconds:.0f}", verdict)
    Console().print(table)
    if not all(r.passed for r in results):
        raise typer.Exit(1)


@app.command()
def plot(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder of the PNGs; RUN/plots without.")
    ] = None,
) -> None:
    """Draw a run's curves, its distances of pairs and its weight functions as PNG."""
    from training.lab.plot import plot_run

    for path in plot_run(run, out or run / "plots"):
        typer.echo(str(path))


@app.command()
def bench(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or .toml path.")] = "compact-sdgm",
    overrides: SetOption = None,
    blocks: Annotated[int, typer.Option(help="Blocks of eight steps to time.")] = 8,
) -> None:
    """Time the training loop against bare forward, backward and step."""
    import tempfile

    from matchserve.memory import keep_freed
    from training.lab.bench import measure
    from training.runs.recipe import load_recipe

    keep_freed()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(load_recipe(recipe, overrides or ()), Path(folder), blocks=blocks)
    typer.echo(
        f"loop {found.loop:.0f} patches/s, bare {found.bare:.0f} patches/s: "
        f"{100 * found.share:.1f} % by the clock, {100 * found.cpu_share:.1f} % in processor time"
    )


def main() -> None:
    """Run the command line; one clear line and an exit code for every expected error."""
    try:
        app()
    except MatchServeError as error:
        sys.stderr.write(f"error: {error.message}\n")
        sys.exit(error.exit_code)
