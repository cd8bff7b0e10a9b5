"""The command `python -m training confidence`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from matchserve.models.confidence import Confidence


def confidence(
    models: Annotated[list[str], typer.Argument(help="Model names, or directories (with a /).")],
    scenes: Annotated[list[Path], typer.Option(help="Folder of scenes; may be repeated.")],
    workspace: Annotated[
        Path, typer.Option(help="Folder in which `data scenes` reconstructed the scenes.")
    ],
    photos: Annotated[
        list[Path] | None, typer.Option(help="Folder of single photographs; may be repeated.")
    ] = None,
    registered: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of registered pairs (1, 2 and H_1_2); may be repeated."),
    ] = None,
    *,
    write: Annotated[
        bool, typer.Option("--write", help="Write the networks beside the models' cards.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Folder for reliability diagrams as PNG.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Number of training epochs.", min=1)] = 6,
    seed: Annotated[int, typer.Option(help="Random seed for pairs, folds and weights.")] = 0,
) -> None:
    """Fit the probability that a match is right, evaluated on held-out scenes."""
    from matchserve.models.registry import load_descriptor
    from training.evaluation.commands import shown_command
    from training.evaluation.confidence.diagram import draw_confidence
    from training.evaluation.confidence.fit import FitOptions, fit_confidence, write_beside_card
    from training.evaluation.confidence.measure import KeypointStore, measure_pairs
    from training.evaluation.confidence.pairs import PairCounts, choose_pairs

    pairs = choose_pairs(scenes, workspace, photos or [], registered or [], PairCounts(), seed)
    store = KeypointStore()
    fitted: dict[str, Confidence] = {}
    for model in models:
        descriptor = load_descriptor(model)
        others = {*models, "--write"} - {model}
        command = shown_command([word for word in sys.argv[1:] if word not in others])
        measured = measure_pairs(descriptor, pairs, store)
        name = descriptor.card.name
        fitted[name] = fit_confidence(measured, FitOptions(epochs=epochs, seed=seed), command)
        if write:
            typer.echo(f"{name}: written to {write_beside_card(model, name, fitted[name])}")
        if plot is not None:
            draw_confidence(fitted[name], name, plot / f"confidence-{name}.png")
    Console().print(_table(fitted))


def _table(fitted: dict[str, Confidence]) -> Table:
    counts = next(iter(fitted.values())).protocol
    title = f"Held-out scenes: {counts['matches']} matches of {sum(counts['pairs'].values())} pairs"
    table = Table("model", "Brier", "AUC", "ECE", "right at 0.9", "found at 0.9", title=title)
    keys = ("brier", "auc", "expected_calibration_error", "right_at_0.9", "share_at_0.9")
    for name, networks in fitted.items():
        table.add_row(name, *(f"{networks.held_out[key]:.4f}" for key in keys))
    return table
