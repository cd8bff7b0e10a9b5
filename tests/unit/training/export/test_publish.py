from __future__ import annotations

import math
from pathlib import Path

import pytest

from matchserve.models.card import read_card
from tests.tiny_models import write_tiny_model
from training.errors import DataError
from training.evaluation.protocol import BenchmarkResult, ModelResult
from training.evaluation.tables import to_json
from training.export.publish import (
    TABLES,
    publish,
    read_cards,
    tables,
)

SHIPPED = Path(__file__).parents[4] / "models"


COMMAND = "python -m training evaluate tiny"


def write_result(
    path: Path,
    figures: dict[str, tuple[str, float]],
    *,
    pairs: int = 10,
    digest: str = "",
    command: str = COMMAND,
) -> Path:
    models = {
        name: ModelResult({"fpr95": value, "correct": math.inf}, stamp=stamp)
        for name, (stamp, value) in figures.items()
    }
    result = BenchmarkResult("pairs", {"pairs": pairs}, digest, models)
    path.write_text(to_json(result, command))
    return path


def two_models(folder: Path) -> dict[str, str]:
    for name in ("one", "two"):
        write_tiny_model(folder / name)
    return {name: str(card.sha256) for name, card in read_cards(folder).items()}


def test_figures_reach_the_cards_and_the_page(tmp_path: Path) -> None:
    models = tmp_path / "models"
    stamps = two_models(models)
    (models / "README.md").write_text("# Ours\n\nWords.\n")
    first = write_result(
        tmp_path / "a.json",
        {"rootsift": ("v", 0.5), "one": (stamps["one"], 0.25), "two": (stamps["two"], 0.125)},
    )
    assert publish(models, {"Held out": first}) == ["Held out: one, two"]
    entry = read_card(models / "one").metrics["Held out"]
    assert entry["command"] == COMMAND
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
    with pytest.raises(DataError, match="another model file"):
        publish(tmp_path / "models", {"Held out": other})
    unknown = write_result(tmp_path / "b.json", {"three": ("0" * 64, 0.25)})
    with pytest.raises(DataError, match="measures none of one"):
        publish(tmp_path / "models", {"Held out": unknown})
    assert (tmp_path / "models" / "one" / "card.json").read_bytes() == before


def test_one_title_holds_what_was_measured_alike(tmp_path: Path) -> None:
    models = tmp_path / "models"
    stamps = two_models(models)
    both = {name: (stamp, 0.5) for name, stamp in stamps.items()}
    one = {"one": (stamps["one"], 0.25)}
    publish(models, {"T": write_result(tmp_path / "a.json", both, digest="d")})
    before = {path: path.read_bytes() for path in models.rglob("*") if path.is_file()}
    for pairs, digest in ((20, "d"), (10, "e")):
        other = write_result(tmp_path / "b.json", one, pairs=pairs, digest=digest)
        with pytest.raises(DataError, match="T: one and two were measured by different"):
            publish(models, {"T": other})
    assert {path: path.read_bytes() for path in before} == before
    alone = write_result(tmp_path / "b.json", one, digest="d", command=f"{COMMAND} one")
    publish(models, {"T": alone})
    page = (models / "README.md").read_text()
    assert "| one | 25.00 | – |" in page
    assert f"`{COMMAND} one`, `{COMMAND}`" in page
    anew = write_result(tmp_path / "b.json", both, pairs=20, digest="e")
    assert publish(models, {"T": anew}) == ["T: one, two"]


@pytest.mark.parametrize(
    ("options", "is_alike"),
    [
        ("--data stores/val --benchmark pairs", True),
        ("--benchmark=pairs --data stores/val --threads 2", True),
        ("--benchmark pairs --data stores/other", False),
        ("--benchmark pairs --data stores/val --data stores/other", False),
    ],
)
def test_cards_without_a_digest_are_judged_by_their_commands(
    tmp_path: Path, options: str, is_alike: bool
) -> None:
    two_models(tmp_path)
    cards = []
    for name, asked in (("one", "--benchmark pairs --data stores/val"), ("two", options)):
        command = f"python -m training evaluate {name} {asked}"
        held = {"command": command, "protocol": {}, "figures": {name: {"fpr95": 0.5}}}
        cards.append(read_card(tmp_path / name).model_copy(update={"metrics": {"T": held}}))
    if is_alike:
        assert tables(cards).count("| 50.00 |") == 2
    else:
        with pytest.raises(DataError, match="T: one and two"):
            tables(cards)


def test_what_cannot_be_published_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such folder"):
        publish(tmp_path / "nowhere", {})
    models = tmp_path / "models"
    stamp = two_models(models)["one"]
    result = write_result(tmp_path / "a.json", {"one": (stamp, 0.25)})
    result.write_text(result.read_text().replace('"command"', '"commando"'))
    with pytest.raises(DataError, match=r"a\.json: does not contain the command"):
        publish(models, {"T": result})
    (models / "two").rename(models / "three")
    with pytest.raises(DataError, match="three: its card names the model 'two'"):
        publish(models, {})


def test_cards_that_do_not_change_are_left_alone(tmp_path: Path) -> None:
    stamp = two_models(tmp_path / "models")["one"]
    cards = [tmp_path / "models" / name / "card.json" for name in ("one", "two")]
    before = [card.stat().st_ino for card in cards]
    publish(tmp_path / "models", {"T": write_result(tmp_path / "a.json", {"one": (stamp, 0.25)})})
    assert [card.stat().st_ino == was for card, was in zip(cards, before, strict=True)] == [
        False,
        True,
    ]


def test_the_shipped_page_says_what_the_cards_say() -> None:
    page = (SHIPPED / "README.md").read_text()
    assert page.partition(TABLES)[2] == tables(list(read_cards(SHIPPED).values())).removeprefix(
        TABLES
    )
