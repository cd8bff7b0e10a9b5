from pathlib import Path
from typing import Any

import pytest

from training.errors import RecipeError
from training.methods.baselines import HardNetOptions
from training.methods.samplers import UniformOptions
from training.recipes.reading import find_line, merge, read_recipe_table
from training.runs.recipe import load_recipe


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)


def test_a_recipe_extends_another(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, base="name = 'base'\nseed = 3\n[optim]\nlr = 0.5\nmomentum = 0.5")
    write(tmp_path / "sub", child="extends = '../base.toml'\n[optim]\nlr = 0.25")
    recipe = load_recipe(str(tmp_path / "sub" / "child.toml"))
    assert (recipe.name, recipe.seed) == ("child", 3)
    assert (recipe.optim.lr, recipe.optim.momentum) == (0.25, 0.5)


def test_a_recipe_extends_a_shipped_one(tmp_path: Path) -> None:
    write(tmp_path, mine="extends = 'sdgm-cpu'\n[run]\nsteps = 5")
    recipe = load_recipe(str(tmp_path / "mine.toml"))
    shipped = load_recipe("sdgm-cpu")
    assert recipe.run.steps == 5
    assert (recipe.loss, recipe.network, recipe.data) == (
        shipped.loss,
        shipped.network,
        shipped.data,
    )


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": 1, "y": 3}}),
        (
            {"loss": {"name": "sdgm", "ema": 0.1}},
            {"loss": {"name": "cdf"}},
            {"loss": {"name": "cdf"}},
        ),
        (
            {"loss": {"name": "sdgm", "ema": 0.1}},
            {"loss": {"name": "sdgm", "soft": True}},
            {"loss": {"name": "sdgm", "ema": 0.1, "soft": True}},
        ),
        ({"loss": {"name": "cdf"}}, {"loss": {"bins": 8}}, {"loss": {"name": "cdf", "bins": 8}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"x": 1}}, {"a": 2}, {"a": 2}),
    ],
)
def test_merging(base: dict[str, Any], changes: dict[str, Any], expected: dict[str, Any]) -> None:
    assert merge(base, changes) == expected


def test_circles_and_missing_parents_are_refused(tmp_path: Path) -> None:
    write(tmp_path, a="extends = 'b.toml'", b="extends = 'c.toml'", c="extends = 'b.toml'")
    with pytest.raises(RecipeError, match=r"circle: b\.toml extends c\.toml extends b\.toml"):
        load_recipe(str(tmp_path / "a.toml"))
    write(tmp_path, me="seed = 1\nextends = 'me.toml'")
    with pytest.raises(RecipeError, match="circle"):
        load_recipe(str(tmp_path / "me.toml"))
    write(tmp_path, lost="seed = 1\nextends = 'sdgm-cpuu'")
    with pytest.raises(RecipeError, match=r"lost\.toml:2: extends: no recipe .*'sdgm-cpu'"):
        load_recipe(str(tmp_path / "lost.toml"))
    write(tmp_path, number="extends = 3")
    with pytest.raises(RecipeError, match=r"number\.toml:1: extends: expected a recipe's name"):
        load_recipe(str(tmp_path / "number.toml"))


def test_unknown_recipe_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'sdgm-cpu'"):
        load_recipe("sdgm-cpuu")
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(str(tmp_path / "none.toml"))
    with pytest.raises(RecipeError, match=r"docs/research/recipes/compact-sdgm\.toml"):
        load_recipe("compact-sdgm")


def test_overrides() -> None:
    recipe = load_recipe(
        "synthetic",
        [
            "optim.lr=0.25",
            "run.steps=7",
            "data.train.0.path=elsewhere",
            "loss.self_weight=l2",
            "run.compile=true",
            "sampler.name=adasample",
            "sampler.lam=inf",
        ],
    )
    assert recipe.optim.lr == 0.25
    assert recipe.run.steps == 7
    assert recipe.data.train[0].path == "elsewhere"
    assert recipe.loss.model_dump()["self_weight"] == "l2"
    assert recipe.run.compile is True
    assert recipe.sampler.model_dump()["lam"] == float("inf")
    assert recipe.recipe_id != load_recipe("synthetic").recipe_id


def test_another_loss_forgets_the_options_of_the_old_one() -> None:
    recipe = load_recipe("sdgm-cpu", ["loss.threshold=0.1", "loss.name=hardnet", "loss.margin=0.8"])
    assert recipe.loss == HardNetOptions(margin=0.8, threshold=0.1)
    assert load_recipe("sdgm-cpu", ["loss.name=sdgm"]).loss == load_recipe("sdgm-cpu").loss
    ada = load_recipe("adasample-cpu", ["sampler.name=uniform", "sampler.order=epoch"])
    assert ada.sampler == UniformOptions(order="epoch")
    # The options of a network mean the same for all networks.
    assert load_recipe("sdgm-cpu", ["network.name=l2net"]).network.width == 0.5


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("optim.lr", "expected key=value"),
        ("data.train.9.path=x", "nothing to set at '9'"),
        ("seed.x.y=1", "nothing to set at 'x'"),
        ("optim.lx=1", "with --set optim.lx=1: unknown key 'optim.lx', did you mean 'lr'?"),
        ("loss.margin=2", "with --set loss.margin=2: loss.margin: expected at least 0"),
    ],
)
def test_bad_overrides(bad: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("synthetic", [bad])
    assert message in caught.value.message


TEXT = """seed = 1

[optim]
lr = 0.1

[[data.train]]
path = "a"
[[data.train]]
path = "b"
weight = 2
[network]
name = "l2net"
optim = 3
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("seed", 1),
        ("optim", 3),
        ("optim.lr", 4),
        ("data.train.0.path", 7),
        ("data.train.1", 8),
        ("data.train.1.weight", 10),
        ("network.optim", 13),
        ("lr", 0),
    ],
)
def test_the_line_of_a_key(key: str, line: int) -> None:
    assert find_line(TEXT, key.split(".")) == line


def test_a_mistake_in_a_parent_is_reported_there(tmp_path: Path) -> None:
    write(
        tmp_path, base="seed = 1\n[optim]\nlr = -1", child="extends = 'base.toml'\n[run]\nsteps=2"
    )
    with pytest.raises(RecipeError, match=r"base\.toml:3: optim\.lr: expected more than 0"):
        load_recipe(str(tmp_path / "child.toml"))
    table = read_recipe_table(tmp_path / "child.toml")
    assert table.place(["run", "steps"]) == "child.toml:3"
    assert table.place(["run", "batch"]) == "child.toml:2"
