from __future__ import annotations

from pathlib import Path

import pytest

from matchserve.models.card import read_card
from training.errors import RecipeError
from training.recipe import load_recipe
from training.run import read_recipe
from training.study import STUDIES, load_study, run_study

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


def test_every_variant_becomes_a_model_once(tmp_path: Path) -> None:
    study = load_study(str(write_study(tmp_path)))
    outcomes = list(run_study(study, tmp_path / "out"))
    assert [o.model.name for o in outcomes] == ["plain", "plain-seed1", "more"]
    assert [o.steps for o in outcomes] == [2, 2, 1]
    assert all(o.seconds > 0 and o.fpr95 for o in outcomes)
    cards = [read_card(o.model) for o in outcomes]
    assert cards[0].sha256 != cards[1].sha256
    more = next((tmp_path / "out" / "runs").glob("more-*"))
    assert Path(read_recipe(more).init_from).name.startswith("plain-")
    again = list(run_study(study, tmp_path / "out"))
    assert [o.seconds for o in again] == [0, 0, 0]
    assert [read_card(o.model).sha256 for o in again] == [c.sha256 for c in cards]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (('start = "plain"', 'start = "plane"'), r"no variant 'plane'.*'plain'"),
        (('name = "more"', 'name = "plain"'), "twice"),
        (("seeds = [0, 1]", "seeds = []"), "no seed"),
        (("seeds = [0, 1]", "seed = [0, 1]"), "unknown key"),
    ],
)
def test_what_cannot_be_studied_is_refused(
    tmp_path: Path, change: tuple[str, str], problem: str
) -> None:
    path = write_study(tmp_path, SMALL.replace(*change))
    with pytest.raises(RecipeError, match=problem):
        load_study(str(path))


def test_a_start_of_another_seed_is_refused(tmp_path: Path) -> None:
    text = SMALL.replace('start = "plain"', 'start = "plain"\nseeds = [5]')
    study = load_study(str(write_study(tmp_path, text)))
    with pytest.raises(RecipeError, match="plain has no seed 5"):
        list(run_study(study, tmp_path / "out"))


def test_studies_that_ship_can_be_trained() -> None:
    names = [e.name.removesuffix(".toml") for e in STUDIES.iterdir() if e.name.endswith(".toml")]
    assert {"methods", "networks"} <= set(names)
    for name in names:
        study = load_study(name)
        for variant in study.variants:
            load_recipe(study.recipe, variant.set)
    with pytest.raises(RecipeError, match=r"no study 'method', did you mean 'methods'"):
        load_study("method")
