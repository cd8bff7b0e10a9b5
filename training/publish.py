"""Measured figures into the cards of shipped models, and the cards into one page of tables.

A result of `evaluate --json` belongs to the files it was measured on: it is refused when a model
of its name is another file by now. The page keeps its own words above the line `TABLES`; all below
it is made anew from the cards, so it cannot say anything else than they do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matchserve.models.card import CARD_FILE, ModelCard, read_card, write_card
from matchserve.models.handcrafted import NAMES as HANDCRAFTED
from training.errors import DataError
from training.evaluation.protocol import BenchmarkResult, ModelResult, model_stamp
from training.evaluation.tables import read_json, to_markdown
from training.files import write_text_whole

PAGE = "README.md"
TABLES = "<!-- Made by `python -m training publish` from the cards: edit above this line only. -->"
_DIGITS = 6


def publish(models: Path, results: Mapping[str, Path]) -> list[str]:
    """Write each titled result into the cards of `models`, then the page; return what was said.

    Raises:
        DataError: a result is of another file than the model that is there, or of none.
    """
    said = []
    cards = read_cards(models)
    for title, path in results.items():
        result, command = read_json(path), _command(path)
        measured = [name for name in result.models if name in cards]
        if not measured:
            raise DataError(f"{path}: measures none of {', '.join(cards) or 'no models'}")
        for name in measured:
            _check_file(cards[name], result.models[name], path)
            cards[name] = _with_figures(cards[name], title, result, command)
        said.append(f"{title}: {', '.join(measured)}")
    for name, card in cards.items():
        write_card(card, models / name)
    page = models / PAGE
    words = page.read_text(encoding="utf-8").partition(TABLES)[0] if page.exists() else "# Models\n"
    write_text_whole(page, words.rstrip() + "\n\n" + tables(list(cards.values())))
    return said


def read_cards(models: Path) -> dict[str, ModelCard]:
    """Cards of the models in `models`, by name, those in one row of the tables after another."""
    return {p.parent.name: read_card(p.parent) for p in sorted(models.glob(f"*/{CARD_FILE}"))}


def tables(cards: Sequence[ModelCard]) -> str:
    """The part of the page below `TABLES`: every benchmark that a card has figures of."""
    titles: dict[str, None] = {}
    for card in cards:
        titles.update((t, None) for t, held in card.metrics.items() if "figures" in held)
    parts = [TABLES]
    for title in titles:
        rows: dict[str, ModelResult] = {}
        protocol: dict[str, Any] = {}
        command = ""
        for card in cards:
            held = card.metrics.get(title)
            if not held:
                continue
            protocol, command = held["protocol"], held["command"]
            for name, figures in held["figures"].items():
                if name == card.name or name in HANDCRAFTED:
                    rows[name] = ModelResult(_numbers(figures), (), (), {})
        result = BenchmarkResult("", protocol, "", rows)
        parts.append(f"## {title}\n\n{to_markdown(result, command).rstrip()}")
    return "\n\n".join(parts) + "\n"


def _with_figures(card: ModelCard, title: str, result: BenchmarkResult, command: str) -> ModelCard:
    figures = {
        name: {k: _rounded(v) for k, v in result.models[name].figures.items()}
        for name in (*HANDCRAFTED, card.name)
        if name in result.models
    }
    entry = {"command": command, "protocol": dict(result.protocol), "figures": figures}
    return card.model_copy(update={"metrics": {**card.metrics, title: entry}})


def _check_file(card: ModelCard, held: ModelResult, path: Path) -> None:
    if held.stamp != model_stamp(card):
        raise DataError(
            f"{path}: the figures of {card.name} are of another file than the one there is; "
            f"evaluate it again"
        )


def _command(path: Path) -> str:
    return str(json.loads(path.read_text(encoding="utf-8"))["command"])


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _numbers(figures: Mapping[str, float | None]) -> dict[str, float]:
    return {k: math.nan if v is None else v for k, v in figures.items()}
