"""The commands `export` and `publish`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from matchserve.models.card import CARD_FILE, DefaultGeometry, read_card
from training.errors import RecipeError
from training.runs.arguments import RunArgument

if TYPE_CHECKING:
    from matchserve.models.card import ModelCard
    from training.export.cards import CardText
    from training.export.parity import Parity
    from training.export.quantise import FloatModel
    from training.runs.validation import ValidationSet


def export(
    run: RunArgument,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Model directory to write; it must not exist.")
    ],
    *,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Quantise a run, or a model directory given as RUN, to int8; refused if the "
            "model loses accuracy.",
        ),
    ] = False,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Patch store that calibrates --int8 of a model directory: training patches, cut "
            "as the model needs them. Can be repeated."
        ),
    ] = None,
    validation: Annotated[
        list[Path] | None,
        typer.Option(
            help="Patch store that measures the loss by --int8 of a model directory. Can be "
            "repeated; the stores of --data if not given."
        ),
    ] = None,
    fp16: Annotated[
        bool,
        typer.Option("--fp16", help="Convert a model directory, given as RUN, to float16."),
    ] = False,
    max_loss: Annotated[
        float,
        typer.Option(help="Largest increase of FPR95 by --int8, in percentage points."),
    ] = 0.5,
    domain_size: Annotated[
        list[float] | None,
        typer.Option(
            help="Also describe a patch this many times as wide as the trained one, and average "
            "the descriptors. Can be repeated.",
            min=0.5,
            max=2,
        ),
    ] = None,
    licence: Annotated[
        str, typer.Option(help="Licence of the weights, for the card.")
    ] = "Apache-2.0",
    method: Annotated[str, typer.Option(help="How the model was made, for the card.")] = "",
    trained_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Name and licence of a training data set, for the model card. Can be repeated."
        ),
    ] = None,
    notes: Annotated[str, typer.Option(help="Other remarks, for the card.")] = "",
    purpose: Annotated[
        str, typer.Option(help="What the model is best used for, in a few words, for the card.")
    ] = "",
    searches_turn: Annotated[
        bool,
        typer.Option(
            "--searches-turn",
            help="Let --orientation auto also try to turn the second image as a whole.",
        ),
    ] = False,
    verify: Annotated[
        DefaultGeometry | None,
        typer.Option(help="Geometry that matches are checked against if a request names none."),
    ] = None,
) -> None:
    """Export a run as a model that matchserve serves, after checking that both agree.

    A model directory can be converted with --fp16, --int8 or --domain-size. It keeps its card: of
    the options for the card only --notes and --purpose are used, and --method with --domain-size.
    """
    from training.export.cards import CardText
    from training.export.domains import export_domains
    from training.export.export import export as export_run
    from training.export.half import export_fp16
    from training.export.quantise import Gate, export_int8
    from training.runs.directory import find_run

    is_model = (run / CARD_FILE).is_file()
    if (data or validation) and not (int8 and is_model):
        raise RecipeError(
            "--data and --validation belong to --int8 of a model directory; a run has its own data"
        )
    if fp16:
        half = export_fp16(run, out).parity
        typer.echo(
            f"{out}: differs from {run} by at most {half.difference:.1e} on {half.patches} patches"
        )
        return
    text = CardText(licence, method, tuple(trained_on or ()), notes, purpose, searches_turn, verify)
    if is_model and domain_size and not int8:
        card, parity = export_domains(run, out, domain_size, text)
        typer.echo(_parity_line(out, card, parity))
        return
    run = find_run(run)
    if not int8:
        card, parity = export_run(run, out, text, domain_sizes=domain_size or ())
        typer.echo(_parity_line(out, card, parity))
        return
    if domain_size:
        raise RecipeError(
            "--domain-size cannot be combined with --int8: the validation stores have only the "
            "smaller patches; export without --int8, then quantise the model directory"
        )
    if is_model:
        model, sets = _model_to_quantise(run, data or [], validation or [], text)
    else:
        model, sets = _run_to_quantise(run, text)
    _, loss = export_int8(model, out, validation=sets, gate=Gate(fpr95_points=max_loss))
    typer.echo(f"{out}: mean cosine {loss.cosine:.5f} to the float descriptors")
    for name, (before, after) in loss.fpr95.items():
        typer.echo(f"{name}: FPR95 {100 * before:.2f} % float, {100 * after:.2f} % int8")


def _parity_line(out: Path, card: ModelCard, parity: Parity) -> str:
    """Say how far an exported model is from its network."""
    bits = f", {parity.bits} bits differ" if card.kind == "binary" else ""
    return (
        f"{out}: differs from the network by at most {parity.difference:.1e} "
        f"on {parity.patches} patches{bits}"
    )


def _run_to_quantise(run: Path, text: CardText) -> tuple[FloatModel, list[ValidationSet]]:
    """Read a run and the validation stores of its recipe."""
    from training.export.quantise import FloatModel
    from training.runs.directory import read_recipe
    from training.runs.sources import open_sources
    from training.runs.validation import validation_sets

    data = read_recipe(run).data
    stores = open_sources(data.validation, run.parent / "stores")
    return FloatModel.of_run(run, text), validation_sets(stores, data.validation_pairs)


def _model_to_quantise(
    directory: Path, data: list[Path], validation: list[Path], text: CardText
) -> tuple[FloatModel, list[ValidationSet]]:
    """Read a model directory, the stores that calibrate it and those that measure its loss."""
    from training.data.store.reader import PatchStore
    from training.export.quantise import FloatModel, refuse_other_spec
    from training.runs.recipe import DataOptions
    from training.runs.validation import validation_sets

    stores = [PatchStore.open(path) for path in data]
    model = FloatModel.of_directory(directory, stores, notes=text.notes, purpose=text.purpose)
    held_out = [PatchStore.open(path) for path in validation] or stores
    refuse_other_spec(held_out, read_card(directory))
    return model, validation_sets(held_out, DataOptions().validation_pairs)


def import_weights(
    file: Annotated[
        Path, typer.Argument(help="Published weights: .pth, .pt, .params or .safetensors.")
    ],
    network: Annotated[
        str,
        typer.Option(help="Network of the weights: l2net, hardnet, sosnet, hynet, sdgm or tfeat."),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Model directory to write; it must not exist.")
    ],
    licence: Annotated[str, typer.Option(help="Licence of the weights, for the card.")],
    *,
    golden: Annotated[
        Path | None,
        typer.Option(
            help="An .npz file with patches and the descriptors that the authors' code computes "
            "of them; the model must agree."
        ),
    ] = None,
    magnification: Annotated[
        float,
        typer.Option(help="Side of the patch around a keypoint, in sigmas of the keypoint."),
    ] = 12.0,
    trained_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Name and licence of a training data set, for the model card. Can be repeated."
        ),
    ] = None,
    notes: Annotated[str, typer.Option(help="Other remarks, for the card.")] = "",
) -> None:
    """Make a model that matchserve serves from weights that others published."""
    from training.export.cards import CardText
    from training.export.imported import import_model

    text = CardText(licence, "", tuple(trained_on or ()), notes)
    card, parity = import_model(
        file, network, out, text, golden=golden, magnification=magnification
    )
    typer.echo(
        f"{out}: {card.dim} dimensions; differs from the network by at most "
        f"{parity.difference:.1e} on {parity.patches} patches"
    )


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
