"""The command line: `matchserve match a.jpg b.jpg`.

Results go to standard output or to files; messages go to standard error.
"""

from __future__ import annotations

import io
import signal
import sys
from typing import Annotated

import typer
from rich.markup import escape

from matchserve import __version__
from matchserve.cli import collection, describe, inspect, match, models, serve, worker
from matchserve.cli.output import say
from matchserve.errors import MatchServeError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    match.match,
    describe.describe,
    collection.reconstruct,
    models.models,
    inspect.doctor,
    inspect.bench,
    serve.serve,
    worker.worker,
):
    app.command()(command)
app.add_typer(collection.app, name="collection")


def _print_version(*, is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"matchserve {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=lambda value: _print_version(is_requested=value),
        ),
    ] = False,
) -> None:
    """Match photographs with learned local descriptors."""
    del version


def main() -> None:
    """Run the command line; print one line and return an exit code for expected errors."""
    # Ctrl-C ends the process at once instead of waiting for threads of the libraries. The service
    # sets its own handlers.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # characters that the terminal lacks become "?"
    try:
        app()
    except MatchServeError as error:
        say(f"[red]error:[/] {escape(error.message)}")
        sys.exit(error.exit_code)
