"""The command `python -m training calibrate MODEL… --scenes DIR --workspace DIR`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from matchserve.models.calibration import Calibration
from matchserve.models.descriptor import KeypointDetector


def calibrate(
    models: Annotated[
        list[str], typer.Argument(help="Model names, or model directories (with a /).")
    ],
    scenes: Annotated[
        list[Path], typer.Option(help="Folder of multi-view scenes; may be repeated.")
    ],
    workspace: Annotated[
        Path,
        typer.Option(
            help="Folder in which `python -m training data scenes` has reconstructed the scenes."
        ),
    ],
    photos: Annotated[
        list[Path] | None, typer.Option(help="Folder of single photographs; may be repeated.")
    ] = None,
    *,
    write: Annotated[
        bool,
        typer.Option("--write", help="Write to the models' cards, with a diagram beside each."),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Folder to write the diagrams to, as PNG.")
    ] = None,
    pairs: Annotated[
        int,
        typer.Option(
            help="Pairs of the same scene; five times as many of different scenes are added.", min=1
        ),
    ] = 400,
    keypoints: Annotated[
        list[int] | None,
        typer.Option(help="Keypoints per image; may be repeated; default 512 and 2048."),
    ] = None,
    ratio: Annotated[
        list[float] | None,
        typer.Option(
            help="Threshold of the ratio test, besides no test; may be repeated; default 0.85."
        ),
    ] = None,
    threshold: Annotated[float, typer.Option(help="Inlier threshold, in pixels.")] = 3.0,
    prior: Annotated[
        float,
        typer.Option(
            help="Assumed share of image pairs that show the same scene (the prior).",
            min=0.001,
            max=0.999,
        ),
    ] = 0.5,
    seed: Annotated[int, typer.Option(help="Random seed for the choice of pairs and folds.")] = 0,
) -> None:
    """Fit the probability that two images show the same scene, evaluated on held-out scenes."""
    from matchserve.models.detection import chosen_detector
    from matchserve.models.registry import load_descriptor
    from matchserve.vision.keypoints import DetectOptions
    from training.evaluation.calibration.calibrate import FitOptions, write_calibration
    from training.evaluation.calibration.calibrate import calibrate as fit
    from training.evaluation.calibration.diagram import draw_reliability
    from training.evaluation.calibration.measure import Detected, find_keypoints
    from training.evaluation.calibration.pairs import PairOptions, all_settings, choose_pairs
    from training.evaluation.commands import shown_command

    settings = all_settings(keypoints or (512, 2048), ratio or (0.85,))
    data = choose_pairs(
        scenes, workspace, photos or [], PairOptions(pairs, settings=settings, seed=seed)
    )
    descriptors = {model: load_descriptor(model) for model in models}
    detected: dict[KeypointDetector | None, Detected] = {}  # DoG keypoints once for all models
    options = FitOptions(prior=prior, threshold_px=threshold, seed=seed)
    fitted: dict[str, Calibration] = {}
    for model, descriptor in descriptors.items():
        name = descriptor.card.name
        detector = chosen_detector(descriptor, DetectOptions())
        if detector not in detected:
            detected[detector] = find_keypoints(data, descriptor)
        others = {*models, "--write"} - {model}
        command = shown_command([word for word in sys.argv[1:] if word not in others])
        fitted[model] = fit(descriptor, data, detected[detector], options, command=command)
        if write:
            typer.echo(f"{name}: written to {write_calibration(model, descriptor, fitted[model])}")
        if plot is not None:
            draw_reliability(fitted[model], name, plot / f"reliability-{name}.png")
    Console().print(_table(fitted))


def _table(fitted: dict[str, Calibration]) -> Table:
    counts = next(iter(fitted.values())).protocol
    title = (
        f"Held-out scenes: {counts['same']} pairs of the same scene, "
        f"{counts['different']} of different scenes"
    )
    table = Table("model", "geometry", "Brier", "log loss", "AUC", "ECE", title=title)
    for name, calibration in fitted.items():
        for kind, geometry in calibration.geometries.items():
            cells = (
                f"{geometry.held_out[key]:.4f}"
                for key in ("brier", "log_loss", "auc", "expected_calibration_error")
            )
            table.add_row(name, kind, *cells)
    return table
