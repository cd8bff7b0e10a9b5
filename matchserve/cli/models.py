"""`matchserve models`: one line for each model, or the card of one."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from matchserve import defaults
from matchserve.cli.options import ModelsDir
from matchserve.cli.output import STANDARD_OUTPUT, printable, say, write_json
from matchserve.errors import ModelError, UnknownModel
from matchserve.models import handcrafted
from matchserve.models.card import MODEL_FILE, ModelCard, read_card
from matchserve.models.registry import list_models, load_descriptor, model_directory
from matchserve.pattern import generate
from matchserve.vision.decode import from_array
from matchserve.vision.keypoints import DetectOptions, detect

ACCURACY = "mma@3px"
_TIMED_KEYPOINTS = 256
_TIMED_ROUNDS = 3
_PURPOSE_WIDTH = 34

Cards = dict[str, ModelCard | ModelError]


def models(
    name: Annotated[
        str | None, typer.Argument(help="Model whose card is printed; all models if not given.")
    ] = None,
    *,
    models_dir: ModelsDir = None,
    json: Annotated[bool, typer.Option("--json", help="Print the cards as JSON.")] = False,
) -> None:
    """List the models, one line each; the time to describe 1000 keypoints is measured now."""
    cards = list_models(models_dir)
    if name is not None:
        _print_card(_find_card(name, cards), as_json=json)
    elif json:
        write_json(
            STANDARD_OUTPUT, {key: _fields(card) for key, card in cards.items()}, indent=True
        )
    else:
        _print_table(cards, models_dir)


def _fields(card: ModelCard | ModelError) -> dict[str, object]:
    return {"error": card.message} if isinstance(card, ModelError) else card.model_dump()


def _print_table(cards: Cards, models_dir: Path | None) -> None:
    title = _common_benchmark(cards)
    times = _describe_times(cards, models_dir)
    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)
    # A long text must not narrow the columns of figures, which rich would cut off too.
    table.add_column("use it for", no_wrap=True, overflow="ellipsis", max_width=_PURPOSE_WIDTH)
    for heading in ("file MB", "bytes", "ms", "MMA %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, card in cards.items():
        if isinstance(card, ModelError):
            table.add_row(name, f"[red]broken: {escape(printable(card.message))}[/]")
            continue
        directory = model_directory(name, models_dir)
        size = (directory / MODEL_FILE).stat().st_size / 1e6 if directory else None
        row_bytes = card.row_length * (4 if card.kind == "float" else 1)
        table.add_row(
            name,
            escape(printable(card.purpose or card.method)),
            "built in" if size is None else f"{size:.1f}",
            str(row_bytes),
            times[name],
            _accuracy(name, cards, title),
        )
    Console().print(table)
    accuracy = f"; MMA: matches within 3 pixels, {title}" if title else ""
    say(
        escape(
            f"\nbytes: of one descriptor; ms: processor time to describe 1000 keypoints here"
            f"{accuracy}{_detector_text(cards)}\nThe default model is {defaults.MODEL}. "
            "matchserve models NAME prints the card."
        )
    )


def _detector_text(cards: Cards) -> str:
    """Say which models have a learned detector."""
    detectors = {
        name: card.detector
        for name, card in cards.items()
        if isinstance(card, ModelCard) and card.detector is not None
    }
    names = [name + (" (default)" if found.is_default else "") for name, found in detectors.items()]
    return f"\nwith a learned detector: {', '.join(names)}" if names else ""


def _describe_times(cards: Cards, models_dir: Path | None) -> dict[str, str]:
    """Return the milliseconds in which each model describes 1000 keypoints, or a dash.

    OpenCV builds an image pyramid each time it describes, so its SIFT has no time per keypoint.
    """
    image = from_array(generate((640, 480), seed=1))
    keypoints = detect(image, DetectOptions(max_keypoints=_TIMED_KEYPOINTS))
    times = dict.fromkeys(cards, "-")
    for name in cards:
        if name in handcrafted.NAMES:
            continue
        try:
            descriptor = load_descriptor(name, models_dir=models_dir, provider="cpu", threads=1)
            seconds = []
            for _ in range(_TIMED_ROUNDS):
                start = time.process_time()
                descriptor.describe(image, keypoints)
                seconds.append(time.process_time() - start)
            times[name] = f"{1e6 * min(seconds) / len(keypoints):.0f}"
        except ModelError:
            continue  # the list says that it is broken, or `doctor` does
    return times


def _benchmarks(card: ModelCard | ModelError) -> dict[str, dict[str, dict[str, float]]]:
    """Return the figures by title and model of the benchmarks that have the accuracy shown."""
    if isinstance(card, ModelError):
        return {}
    measured = {
        title: entry["figures"]
        for title, entry in card.metrics.items()
        if isinstance(entry, dict) and isinstance(entry.get("figures"), dict)
    }
    return {
        title: figures
        for title, figures in measured.items()
        if any(isinstance(row, dict) and ACCURACY in row for row in figures.values())
    }


def _common_benchmark(cards: Cards) -> str | None:
    """Return the benchmark that most models were measured on: only one can be compared."""
    titles = Counter(title for card in cards.values() for title in _benchmarks(card))
    return titles.most_common(1)[0][0] if titles else None


def _accuracy(name: str, cards: Cards, title: str | None) -> str:
    """Return the figure of a model, from its card or from one that it was compared in."""
    for card in (cards[name], *cards.values()):
        row = _benchmarks(card).get(title or "", {}).get(name, {})
        if ACCURACY in row:
            return f"{100 * row[ACCURACY]:.1f}"
    return "-"


def _find_card(name: str, cards: Cards) -> ModelCard:
    """Return the card of a model by name, or of a model directory by path.

    Raises:
        ModelError: the model is broken.
        UnknownModel: there is no such model.
    """
    card = read_card(Path(name)) if "/" in name else cards.get(name)
    if card is None:
        raise UnknownModel(f"no model named {name[:80]!r}; there are {', '.join(cards)}")
    if isinstance(card, ModelError):
        raise card
    return card


def _print_card(card: ModelCard, *, as_json: bool) -> None:
    if as_json:
        write_json(STANDARD_OUTPUT, _fields(card), indent=True)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    patch = card.patch
    rows = {
        "model": f"{card.name}, version {card.version}",
        "use it for": card.purpose,
        "descriptor": f"{card.dim} {'bits' if card.kind == 'binary' else 'floats'}",
        "patch": f"--magnification {patch.magnification:g} --size {patch.size}",
        "method": card.method,
        "trained on": "\n".join(card.training_data),
        "same_scene": "calibrated" if card.calibration else "unknown: no calibration",
        "confidence": "of every match" if card.confidence else "none",
        "licence": card.licence,
        "notes": card.notes,
        "benchmarks": "\n".join(
            f"{title}: {100 * figures[card.name][ACCURACY]:.1f} % MMA@3px"
            for title, figures in _benchmarks(card).items()
            if ACCURACY in figures.get(card.name, {})
        ),
    }
    for label, text in rows.items():
        if text:
            table.add_row(label, escape(printable(text)))
    Console().print(table)
