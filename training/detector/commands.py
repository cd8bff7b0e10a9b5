"""The commands `python -m training detector crops`, `train` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from training.data.arguments import MaxSide, Workers
from training.errors import RecipeError

app = typer.Typer(
    no_args_is_help=True, help="Train a network that finds keypoints, and export it for a model."
)


@app.command()
def crops(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write, crops.npz.")],
    photos: Annotated[
        list[Path] | None, typer.Option(help="Folder of photographs; may be repeated.")
    ] = None,
    registered: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of registered pairs (1.*, 2.*, H_1_2); may be repeated."),
    ] = None,
    *,
    per_megapixel: Annotated[
        float, typer.Option(help="Number of crops per megapixel of a photograph.", min=0)
    ] = 12.0,
    per_pair: Annotated[int, typer.Option(help="Number of crops per registered pair.", min=1)] = 6,
    hold_out: Annotated[
        list[str] | None,
        typer.Option(
            help="Leave out photographs and registered pairs whose name (folder/file, or "
            "folder/pair) matches this pattern; may be repeated."
        ),
    ] = None,
    hold_out_every: Annotated[
        int,
        typer.Option(help="Leave out every N-th photograph of each folder; 0 for none.", min=0),
    ] = 0,
    max_side: MaxSide = 1024,
    seed: Annotated[int, typer.Option(help="Random seed of the crops.", min=0)] = 0,
    workers: Workers = None,
) -> None:
    """Cut pairs of crops of known geometry from photographs and registered pairs."""
    from training.detector.crops import CropOptions, write_crops

    options = CropOptions(
        per_megapixel, per_pair, tuple(hold_out or ()), hold_out_every, max_side, seed
    )
    made = write_crops(photos or [], registered or [], output, options, workers)
    counts = ", ".join(f"{count} of {folder}" for folder, count in made.items())
    typer.echo(f"{output}: {sum(made.values())} pairs of crops: {counts}")


@app.command()
def train(
    crops_file: Annotated[Path, typer.Argument(metavar="CROPS", help="File of crops.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run.")],
    *,
    steps: Annotated[int, typer.Option(help="Number of steps.", min=1)] = 4000,
    batch: Annotated[int, typer.Option(help="Pairs of crops per step.", min=1, max=256)] = 2,
    lr: Annotated[float, typer.Option(help="Largest learning rate.")] = 4e-3,
    exact_px: Annotated[
        float,
        typer.Option(help="Distance, in pixels, at which a keypoint found again counts 0.61."),
    ] = 1.0,
    place_weight: Annotated[
        float, typer.Option(help="Weight of the place loss of Key.Net.", min=0)
    ] = 0.0,
    width: Annotated[int, typer.Option(help="Number of filters per layer.", min=1)] = 16,
    seed: Annotated[int, typer.Option(help="Random seed of the run.", min=0)] = 0,
    checkpoint_minutes: Annotated[
        float, typer.Option(help="Minutes between two checkpoints.", min=0)
    ] = 3.0,
    threads: Annotated[
        int | None, typer.Option(help="Number of CPU threads of PyTorch.", min=1)
    ] = None,
) -> None:
    """Train the network. After an interruption, the same command resumes the run."""
    import pydantic
    import torch

    from training.detector.crops import read_crops
    from training.detector.loop import DetectorRecipe
    from training.detector.loop import train as train_run
    from training.detector.network import NetworkOptions

    if threads is not None:
        torch.set_num_threads(threads)
    data = read_crops(crops_file)
    try:
        recipe = DetectorRecipe(
            crops_sha256=data.sha256,
            steps=steps,
            batch=batch,
            lr=lr,
            exact_px=exact_px,
            place_weight=place_weight,
            network=NetworkOptions(width=width),
            seed=seed,
        )
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise RecipeError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    typer.echo(str(train_run(data, output, recipe, checkpoint_minutes=checkpoint_minutes)))


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    model: Annotated[Path, typer.Option(help="Directory of the model that gets the detector.")],
    *,
    default: Annotated[
        bool, typer.Option("--default", help="Use it for requests that name no detector.")
    ] = False,
    sigma: Annotated[
        float,
        typer.Option(help="Scale of a keypoint, in pixels of its level of the pyramid.", min=0.6),
    ] = 2.4,
) -> None:
    """Write the detector of a run into a model directory, and its section of the card."""
    from training.detector.export import export as export_run

    card, difference = export_run(run, model, is_default=default, sigma=sigma)
    typer.echo(f"{model}: {card.method}; differs from the network by {difference:.2g}")
