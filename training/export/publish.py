"""Measured figures into the cards of shipped models, and the cards into one page of tables.

A result of `evaluate --json` belongs to the files it was measured on: it is refused when a model
of its name is another file by now. The page keeps its own words above the line `TABLES`; all below
it is made anew from the cards, so it cannot say anything else than they do.
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
from training.evaluation.protocol import BenchmarkResult, ModelResult, model_stamp
from training.evaluation.tables import read_json, to_markdown

PAGE = "README.md"
TABLES = "<!-- Made by `python -m training publish` from the cards: edit above this line only. -->"
_DIGITS = 6


def publish(models: Path, results: Mapping[str, Path]) -> list[str]:
    """Write each titled result into the cards of `models`, then the page; return what was said.

    Raises:
        DataError: a result is of another file than the model that is there, or of none, or was
            measured otherwise than what other cards keep under its title. Nothing is written.
    """
    said = []
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
        said.append(f"{title}: {', '.join(measured)}")
    made = tables(list(cards.values()))
    for name, card in cards.items():
        if card != before[name]:
            write_card(card, models / name)
    page = models / PAGE
    words = page.read_text(encoding="utf-8").partition(TABLES)[0] if page.exists() else "# Models\n"
    write_text_whole(page, words.rstrip() + "\n\n" + made)
    return said


def read_cards(models: Path) -> dict[str, ModelCard]:
    """Cards of the models in `models`, by name, those in one row of the tables after another.

    Raises:
        DataError: there is no such folder, or a directory has not the name of its model.
    """
    if not models.is_dir():
        raise DataError(f"{models}: no such folder of models")
    cards = {p.parent.name: read_card(p.parent) for p in sorted(models.glob(f"*/{CARD_FILE}"))}
    for name, card in cards.items():
        if card.name != name:
            raise DataError(f"{models / name}: its card is of {card.name!r}; rename the directory")
    return cards


def tables(cards: Sequence[ModelCard]) -> str:
    """The part of the page below `TABLES`: every benchmark that a card has figures of.

    Raises:
        DataError: figures of one title were measured by different protocols or on other data.
    """
    titled: dict[str, dict[str, Mapping[str, Any]]] = {}
    for card in cards:
        for title, held in card.metrics.items():
            if "figures" in held:
                titled.setdefault(title, {})[card.name] = held
    return "\n\n".join([TABLES, *(_table(title, held) for title, held in titled.items())]) + "\n"


def _table(title: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    """One table of what the cards hold under `title`, with every command that made a part of it."""
    for one, other in combinations(entries, 2):
        if not _is_comparable(entries[one], entries[other]):
            raise DataError(
                f"{title}: {one} and {other} were measured by different protocols or on "
                f"different data; evaluate them together, or give another title"
            )
    rows: dict[str, ModelResult] = {}
    protocol: dict[str, Any] = {}
    for model, held in entries.items():
        protocol = held["protocol"]
        for name, figures in held["figures"].items():
            if name == model or name in HANDCRAFTED:
                rows[name] = ModelResult(_numbers(figures), (), (), {})
    commands = dict.fromkeys(str(held["command"]) for held in entries.values())
    result = BenchmarkResult("", protocol, "", rows)
    return f"## {title}\n\n{to_markdown(result, '`, `'.join(commands)).rstrip()}"


def _is_comparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two cards' figures may stand in one table; which models were measured is no matter.

    Cards of before the digest of the data was kept are judged by the data of their commands.
    """
    if one["protocol"] != other["protocol"]:
        return False
    if "data_digest" in one and "data_digest" in other:
        return bool(one["data_digest"] == other["data_digest"])
    return _data_of(one["command"]) == _data_of(other["command"])


def _data_of(command: str) -> list[tuple[str, str]]:
    words = [part for word in shlex.split(command) for part in _option_and_value(word)]
    asked = [pair for pair in pairwise(words) if pair[0] in ("--benchmark", "--data")]
    return sorted(asked, key=lambda pair: pair[0])


def _option_and_value(word: str) -> list[str]:
    return word.split("=", 1) if word.startswith("--") else [word]


def _with_figures(card: ModelCard, title: str, result: BenchmarkResult, command: str) -> ModelCard:
    figures = {
        name: {k: _rounded(v) for k, v in result.models[name].figures.items()}
        for name in (*HANDCRAFTED, card.name)
        if name in result.models
    }
    entry = {
        "command": command,
        "protocol": dict(result.protocol),
        "data_digest": result.digest,
        "figures": figures,
    }
    return card.model_copy(update={"metrics": {**card.metrics, title: entry}})


def _check_file(card: ModelCard, held: ModelResult, path: Path) -> None:
    if held.stamp != model_stamp(card):
        raise DataError(
            f"{path}: the figures of {card.name} are of another file than the one there is; "
            f"evaluate it again"
        )


def _command(path: Path) -> str:
    command = json.loads(path.read_text(encoding="utf-8")).get("command")
    if not isinstance(command, str):
        raise DataError(f"{path}: does not say the command that made it")
    return command


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _numbers(figures: Mapping[str, float | None]) -> dict[str, float]:
    return {k: math.nan if v is None else v for k, v in figures.items()}
