"""The shipped recipes, and those for research in docs/."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from training.methods.sdgm import SdgmOptions
from training.recipes.reading import RESEARCH, SHIPPED, recipe_path, shipped_recipes
from training.runs.recipe import load_recipe, recipe_from_table

ROOT = Path(__file__).parents[4]
RESEARCH_FILES = sorted((ROOT / "docs/research/recipes").glob("*.toml"))
# Recorded before recipes became pydantic models: a changed ID would orphan existing runs, which
# are found by `full_id`.
RECORDED_IDS = json.loads((Path(__file__).parent / "recipe_ids.json").read_text())

PAPERS = {
    "sdgm-paper",
    "sdgm-paper-finetune",
    "cdf-paper",
    "cdf-binary-paper",
    "adasample-paper",
    "stochastic-paper",
    "stochastic-triplet-paper",
    "hardnet-paper",
    "stochastic-30k",
    "siamese-30k",
    "contrastive-30k",
}
CPU = {
    "hardnet-cpu", "sdgm-cpu", "cdf-cpu", "cdf-binary-cpu", "adasample-cpu", "stochastic-cpu",
    "hynet-cpu", "sosnet-cpu", "l2net-cpu", "tfeat-cpu",
}  # fmt: skip
STAGES = {
    "compact-k20", "compact-start", "compact-neighbours", "compact-mixed", "robust-start",
}  # fmt: skip
NEVER_SHIPPED = {"methods-registered", "methods-study", "stochastic-study"}
MODELS = {"compact", "binary", "robust"}


def test_exactly_these_recipes_ship() -> None:
    assert set(shipped_recipes()) == PAPERS | CPU | STAGES | MODELS | {"synthetic", "compact-tune"}
    assert {path.stem for path in RESEARCH_FILES} == set(RESEARCH) | NEVER_SHIPPED


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_shipped_recipe_keeps_its_id_and_survives_toml(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.full_id == RECORDED_IDS[name]
    again = recipe_from_table(tomllib.loads(recipe.to_toml()), "again")
    assert again == recipe
    assert again.recipe_id == recipe.recipe_id


@pytest.mark.parametrize("path", RESEARCH_FILES, ids=lambda path: path.stem)
def test_a_research_recipe_keeps_its_id(path: Path) -> None:
    assert load_recipe(str(path)).full_id == RECORDED_IDS[path.stem]


def comments(name: str) -> str:
    return "\n".join(re.findall("^#.*$", recipe_path(name).read_text(), re.MULTILINE))


def test_every_start_is_made_by_a_shipped_recipe_or_is_a_shipped_model() -> None:
    blends = {
        out: run
        for name in shipped_recipes()
        for run, out in re.findall(r"blend (runs/\S+) .*?-o (runs/\S+)", comments(name))
    }
    assert blends["runs/compact-blended"] == "runs/compact-neighbours"
    for name in shipped_recipes():
        start = load_recipe(name).init_from
        if start.startswith("models/"):
            assert (ROOT / start / "card.json").is_file()
        elif start:
            made_by = blends.get(start, start).removeprefix("runs/")
            assert made_by in shipped_recipes(), f"{name} starts from {start}"
            assert made_by != name


def test_no_chain_of_starts_is_circular() -> None:
    for name in shipped_recipes():
        seen = {name}
        while start := load_recipe(name).init_from:
            name = start.split("/")[1].replace("-blended", "-neighbours").replace("-long", "-mixed")
            if start.startswith("models/"):
                break
            assert name not in seen
            seen.add(name)


@pytest.mark.parametrize("name", sorted(MODELS | {"compact-tune"}))
def test_recipes_of_shipped_models_have_the_networks_of_their_cards(name: str) -> None:
    card = json.loads((ROOT / "models" / name.split("-")[0] / "card.json").read_text())
    assert load_recipe(name).network.model_dump() == card["recipe"]["network"]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_recipes_of_shipped_models_are_those_of_their_cards(name: str) -> None:
    recipe = load_recipe(name)
    card = json.loads((ROOT / "models" / name / "card.json").read_text())["recipe"]
    for table in ("loss", "sampler", "optim", "augment", "run"):
        values = json.loads(json.dumps(getattr(recipe, table).model_dump()))
        # Keys that were added later have no influence on the weights.
        assert {key: values[key] for key in card[table]} == card[table], table


def test_paper_settings() -> None:
    sdgm = load_recipe("sdgm-paper")
    assert (sdgm.run.steps, sdgm.run.batch, sdgm.optim.lr) == (200_000, 1024, 1.0)
    assert sdgm.loss == SdgmOptions()
    assert sdgm.network.dropout == 0.3
    tuned = load_recipe("sdgm-paper-finetune").loss
    assert isinstance(tuned, SdgmOptions)
    assert (tuned.margin, tuned.soft, tuned.warmup, tuned.relaxed) == (0.1, False, 0.0, 0.0)
    ada = load_recipe("adasample-paper")
    assert (ada.optim.lr, ada.optim.momentum) == (10.0, 0.5)
    assert ada.sampler.model_dump()["candidates"] == 15
    assert load_recipe("cdf-paper").optim.lr == 0.1
    assert load_recipe("stochastic-paper").network.name == "residual"


def test_every_file_begins_with_a_description() -> None:
    for name, line in shipped_recipes().items():
        first = (SHIPPED / f"{name}.toml").read_text().splitlines()[0]
        assert first == f"# {line}"
        assert len(line) > 20
