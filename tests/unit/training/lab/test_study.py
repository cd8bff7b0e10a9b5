from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from matchserve.models.card import read_card
from training.cli import app
from training.errors import CheckpointError, RecipeError
from training.lab import study as studies
from training.lab.study import (
    Outcome,
    load_study,
    plan,
    run_study,
)
from training.runs.directory import read_recipe

STUDIES = sorted((Path(__file__).parents[4] / "docs/research/studies").glob("*.toml"))

SMALL = """
recipe = "{recipe}"
[[variants]]
name = "plain"
set = ['loss.name="hardnet"']
seeds = [0, 1]
[[variants]]
name = "more"
start = "plain"
set = ["run.steps=1"]
"""

RECIPE = """
[network]
name = "patchify48"
width = 0.25
[[data.train]]
path = "synthetic:3:200"
[[data.validation]]
path = "synthetic:4:200"
[run]
steps = 2
batch = 16
"""


def write_study(folder: Path, text: str = SMALL) -> Path:
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE)
    path = folder / "study.toml"
    path.write_text(text.format(recipe=recipe))
    return path


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Outcome]]:
    """The file of a small study, trained into `out` beside it, and its outcomes."""
    path = write_study(tmp_path_factory.mktemp("study"))
    return path, list(run_study(load_study(path), path.parent / "out"))


@pytest.fixture
def copied(
    done: tuple[Path, list[Outcome]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A copy of the trained study in the current folder, which a test may change."""
    folder = tmp_path / "copy"
    shutil.copytree(done[0].parent, folder)
    monkeypatch.chdir(folder)
    return folder / "study.toml"


def test_every_variant_becomes_a_model_once(done: tuple[Path, list[Outcome]], copied: Path) -> None:
    outcomes = done[1]
    assert [o.model.name for o in outcomes] == ["plain", "plain-seed1", "more"]
    assert [o.steps for o in outcomes] == [2, 2, 1]
    assert all(o.seconds > 0 and o.fpr95 for o in outcomes)
    cards = [read_card(o.model) for o in outcomes]
    assert cards[0].sha256 != cards[1].sha256
    more, plain = (next(Path("out/runs").glob(f"{n}-*")) for n in ("more", "plain"))
    assert read_recipe(more).init_from in [run.name for run in plain.parent.glob("plain-*")]
    for out in (Path("out"), copied.parent / "out"):
        again = list(run_study(load_study(copied), out))
        assert [o.seconds for o in again] == [0, 0, 0]
        assert [read_card(o.model).sha256 for o in again] == [c.sha256 for c in cards]


def test_a_model_of_an_edited_variant_is_not_taken_for_finished(copied: Path) -> None:
    copied.write_text(copied.read_text().replace('["run.steps=1"]', '["run.steps=3"]'))
    shutil.rmtree("out/models/plain")
    with pytest.raises(RecipeError, match=r"out/models/more: was not exported .* another --out"):
        next(run_study(load_study(copied), Path("out")))
    assert not Path("out/models/plain").exists()


def test_a_model_of_another_run_is_not_taken_for_finished(copied: Path) -> None:
    shutil.rmtree("out/models/plain")
    shutil.copytree("out/models/plain-seed1", "out/models/plain")
    with pytest.raises(RecipeError, match="out/models/plain: was not exported from the run plain-"):
        next(run_study(load_study(copied), Path("out")))


def test_an_error_does_not_lose_the_rows_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_later(*_: object) -> Iterator[Outcome]:
        yield Outcome(tmp_path / "plain", tmp_path, 2, 16, 1.5, 60.0, {})
        raise CheckpointError("no weights")

    monkeypatch.setattr(studies, "run_study", fails_later)
    path = write_study(tmp_path)
    found = CliRunner().invoke(app, ["study", str(path), "--out", str(tmp_path / "out")])
    assert isinstance(found.exception, CheckpointError)
    assert "plain" in found.output


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (('start = "plain"', 'start = "plane"'), r"no earlier variant 'plane'.*'plain'"),
        (('name = "more"', 'name = "plain"'), "occurs twice"),
        (("seeds = [0, 1]", "seeds = []"), "at least one seed"),
        (("seeds = [0, 1]", "seed = [0, 1]"), "unknown key"),
        (("seeds = [0, 1]", "seeds = [1, 1]"), "plain: the same seed occurs twice"),
        (("seeds = [0, 1]", "seeds = [1]"), "more: plain is not trained with seed 0"),
        (('name = "more"', 'name = "plain-seed1"'), "'plain-seed1' occurs twice"),
        (('name = "more"', 'name = "More"'), "'More' is not a legal model name"),
        (("run.steps=1", "run.stepps=1"), r"study\.toml: more: .*stepps.*'steps'"),
        ((SMALL[SMALL.index("[[") :], ""), "at least one variant"),
    ],
)
def test_what_cannot_be_studied_is_refused(
    tmp_path: Path, change: tuple[str, str], problem: str
) -> None:
    path = write_study(tmp_path, SMALL.replace(*change))
    with pytest.raises(RecipeError, match=problem):
        load_study(path)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_studies_of_this_project_can_be_trained(path: Path) -> None:
    assert plan(load_study(path))


def test_a_name_is_not_a_study() -> None:
    assert {path.stem for path in STUDIES} >= {"methods", "networks"}
    with pytest.raises(RecipeError, match=r"methods: expected the path .* docs/research/studies"):
        load_study(Path("methods"))
