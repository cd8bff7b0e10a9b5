"""Publish benchmark results: write them into the cards of models, and the cards into one page.

A result of `evaluate --json` belongs to the model files it was measured on; it is refused if a
model of its name is a different file now. On the page, the text above the line `TABLES` is kept;
everything below it is generated from the cards, so page and cards cannot disagree.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from matchserve.files import write_text_whole
from matchserve.models.card import CARD_FILE, ModelCard, read_card, write_card
from matchserve.models.handcrafted import NAMES as HANDCRAFTED
from training.errors import DataError
from training.evaluation.peer import PEER
from training.evaluation.pipeline import raw_name
from training.evaluation.protocol import (
    BenchmarkResult,
    ModelResult,
    current_protocol,
    model_stamp,
)
from training.evaluation.tables import read_json, to_markdown

PAGE = "README.md"
TABLES = "<!-- Made by `python -m training publish` from the cards: edit above this line only. -->"
_SIGNIFICANT_DIGITS = 6


def publish(models: Path, results: Mapping[str, Path]) -> list[str]:
    """Write result files, by title, into the cards in `models`, then write the page.

    Returns:
        One line for each title, with the models it was written to.

    Raises:
        DataError: a result measures none of the models or a different file than the one here, or
            its protocol or data differ from what other cards hold under the same title. Nothing
            is written then.
    """
    lines = []
    before = read_cards(models)
    cards = dict(before)
    for title, path in results.items():
        result, command = read_json(path), _command(path)
        measured = [name for name in result.models if name in cards]
        if not measured:
            raise DataError(f"{path}: measures none of {', '.join(cards) or 'no models'}")
        for name in measured:
            _check_file(cards[name], result.models[name], path)
            cards[name] = _with_figures(cards[name], title, result, command)
        lines.append(f"{title}: {', '.join(measured)}")
    generated = tables(list(cards.values()))
    for name, card in cards.items():
        if card != before[name]:
            write_card(card, models / name)
    page = models / PAGE
    text = page.read_text(encoding="utf-8").partition(TABLES)[0] if page.exists() else "# Models\n"
    write_text_whole(page, text.rstrip() + "\n\n" + generated)
    return lines


def read_cards(models: Path) -> dict[str, ModelCard]:
    """Read the cards of all models in the folder `models`, in alphabetical order.

    Raises:
        DataError: the folder does not exist, or a directory and its card have different names.
    """
    if not models.is_dir():
        raise DataError(f"{models}: no such folder of models")
    cards = {p.parent.name: read_card(p.parent) for p in sorted(models.glob(f"*/{CARD_FILE}"))}
    for name, card in cards.items():
        if card.name != name:
            raise DataError(
                f"{models / name}: its card names the model {card.name!r}; rename the directory"
            )
    return cards


def tables(cards: Sequence[ModelCard]) -> str:
    """Return the part of the page below `TABLES`: one table for each title in the cards.

    Raises:
        DataError: cards hold values under one title that differ in protocol or data.
    """
    by_title: dict[str, dict[str, Mapping[str, Any]]] = {}
    for card in cards:
        for title, entry in card.metrics.items():
            if "figures" in entry:
                by_title.setdefault(title, {})[card.name] = entry
    parts = [_table(title, entries) for title, entries in by_title.items()]
    return "\n\n".join([TABLES, *parts]) + "\n"


def _table(title: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of what the cards hold under `title`, with the commands that measured it."""
    for one, other in combinations(entries, 2):
        if not _is_comparable(entries[one], entries[other]):
            raise DataError(
                f"{title}: {one} and {other} were measured by different protocols or on "
                f"different data; evaluate them together, or give another title"
            )
    rows: dict[str, ModelResult] = {}
    protocol: dict[str, Any] = {}
    for model, entry in entries.items():
        protocol = current_protocol(entry["protocol"])
        for name, figures in entry["figures"].items():
            if name in _rows_beside(model):
                rows[name] = ModelResult(_numbers(figures), (), (), {})
    commands = dict.fromkeys(str(entry["command"]) for entry in entries.values())
    result = BenchmarkResult("", protocol, "", rows)
    return f"## {title}\n\n{to_markdown(result, '`, `'.join(commands)).rstrip()}"


def _rows_beside(model: str) -> tuple[str, ...]:
    """Return the rows of a result for one model: those that it is compared with, then its own."""
    known = (*HANDCRAFTED, model)
    return (PEER, *(row for name in known for row in (raw_name(name), name)))


def _is_comparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether the values of two cards may be in one table.

    Older cards have no digest of the data; the data named in their commands is compared instead.
    """
    if current_protocol(one["protocol"]) != current_protocol(other["protocol"]):
        return False
    if "data_digest" in one and "data_digest" in other:
        return bool(one["data_digest"] == other["data_digest"])
    return _data_of(one["command"]) == _data_of(other["command"])


def _data_of(command: str) -> list[tuple[str, str]]:
    """Return the options --benchmark and --data of a command, sorted by name."""
    words = [part for word in shlex.split(command) for part in _option_and_value(word)]
    chosen = [pair for pair in pairwise(words) if pair[0] in ("--benchmark", "--data")]
    return sorted(chosen, key=lambda pair: pair[0])


def _option_and_value(word: str) -> list[str]:
    return word.split("=", 1) if word.startswith("--") else [word]


def _with_figures(card: ModelCard, title: str, result: BenchmarkResult, command: str) -> ModelCard:
    figures = {
        name: {k: _rounded(v) for k, v in result.models[name].figures.items()}
        for name in _rows_beside(card.name)
        if name in result.models
    }
    entry = {
        "command": command,
        "protocol": dict(result.protocol),
        "data_digest": result.digest,
        "figures": figures,
    }
    return card.model_copy(update={"metrics": {**card.metrics, title: entry}})


def _check_file(card: ModelCard, measured: ModelResult, path: Path) -> None:
    if measured.stamp != model_stamp(card):
        raise DataError(
            f"{path}: {card.name} was measured with another model file than the one here; "
            f"evaluate it again"
        )


def _command(path: Path) -> str:
    command = json.loads(path.read_text(encoding="utf-8")).get("command")
    if not isinstance(command, str):
        raise DataError(f"{path}: does not contain the command that made it")
    return command


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else None


def _numbers(figures: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in figures.items()}
