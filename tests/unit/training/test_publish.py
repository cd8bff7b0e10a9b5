from __future__ import annotations

import math
from pathlib import Path

import pytest

from matchserve.models.card import read_card
from tests.tiny_models import write_tiny_model
from training.errors import DataError
from training.evaluation.protocol import BenchmarkResult, ModelResult
from training.evaluation.tables import to_json
from training.publish import TABLES, publish, read_cards, tables

SHIPPED = Path(__file__).parents[3] / "models"


def write_result(path: Path, figures: dict[str, tuple[str, float]]) -> Path:
    models = {
        name: ModelResult({"fpr95": value, "correct": math.inf}, stamp=stamp)
        for name, (stamp, value) in figures.items()
    }
    result = BenchmarkResult("pairs", {"pairs": 10}, "", models)
    path.write_text(to_json(result, "python -m training evaluate tiny"))
    return path


def test_figures_reach_the_cards_and_the_page(tmp_path: Path) -> None:
    models = tmp_path / "models"
    for name in ("one", "two"):
        write_tiny_model(models / name)
    stamps = {name: str(card.sha256) for name, card in read_cards(models).items()}
    (models / "README.md").write_text("# Ours\n\nWords.\n")
    first = write_result(
        tmp_path / "a.json",
        {"rootsift": ("v", 0.5), "one": (stamps["one"], 0.25), "two": (stamps["two"], 0.125)},
    )
    assert publish(models, {"Held out": first}) == ["Held out: one, two"]
    entry = read_card(models / "one").metrics["Held out"]
    assert entry["command"] == "python -m training evaluate tiny"
    assert entry["figures"] == {
        "rootsift": {"fpr95": 0.5, "correct": None},
        "one": {"fpr95": 0.25, "correct": None},
    }
    page = (models / "README.md").read_text()
    assert page.startswith("# Ours\n\nWords.\n")
    assert page.count(TABLES) == 1
    for row in ("| rootsift | 50.00 | – |", "| one | 25.00 | – |", "| two | 12.50 | – |"):
        assert page.count(row) == 1
    second = write_result(tmp_path / "b.json", {"one": (stamps["one"], 0.75)})
    publish(models, {"Another": second})
    page = (models / "README.md").read_text()
    assert page.count(TABLES) == 1
    assert page.count("Words.") == 1
    assert page.index("## Held out") < page.index("## Another")
    publish(models, {})
    assert (models / "README.md").read_text() == page


def test_figures_of_another_file_are_refused(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "models" / "one")
    before = (tmp_path / "models" / "one" / "card.json").read_bytes()
    other = write_result(tmp_path / "a.json", {"one": ("0" * 64, 0.25)})
    with pytest.raises(DataError, match="another file"):
        publish(tmp_path / "models", {"Held out": other})
    unknown = write_result(tmp_path / "b.json", {"three": ("0" * 64, 0.25)})
    with pytest.raises(DataError, match="measures none of one"):
        publish(tmp_path / "models", {"Held out": unknown})
    assert (tmp_path / "models" / "one" / "card.json").read_bytes() == before


def test_the_shipped_page_says_what_the_cards_say() -> None:
    page = (SHIPPED / "README.md").read_text()
    assert page.partition(TABLES)[2] == tables(list(read_cards(SHIPPED).values())).removeprefix(
        TABLES
    )
