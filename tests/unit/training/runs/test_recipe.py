import tomllib
import typing
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.training.tiny_runs import tiny
from training.errors import RecipeError
from training.methods import METHODS, SAMPLERS, AnySamplerOptions, LossOptions
from training.runs.recipe import Recipe, Source, recipe_from_table


def members(union: object) -> dict[str, type]:
    return {m.model_fields["name"].default: m for m in typing.get_args(typing.get_args(union)[0])}


def test_the_unions_of_options_are_those_of_the_registries() -> None:
    assert members(LossOptions) == {name: method.options for name, method in METHODS.items()}
    assert members(AnySamplerOptions) == {name: entry.options for name, entry in SAMPLERS.items()}


def test_a_recipe_cannot_be_changed() -> None:
    recipe = tiny()
    with pytest.raises(ValidationError, match="frozen"):
        recipe.seed = 3
    with pytest.raises(ValidationError, match="frozen"):
        recipe.optim.lr = 3.0
    assert hash(recipe) == hash(tiny())


def test_any_value_survives_toml() -> None:
    recipe = tiny(
        name='quo"te\\ ä',
        sampler={"name": "adasample", "lam": float("inf")},
        data={"train": [{"path": "a", "scenes": ["x", "y"]}, {"path": "b", "weight": 2}]},
    )
    assert recipe.data.train[1] == Source(path="b", weight=2.0)
    assert recipe_from_table(tomllib.loads(recipe.to_toml()), "again") == recipe


def test_defaults_are_shared_by_file_and_code() -> None:
    assert recipe_from_table({"name": "x"}, "x") == Recipe(name="x")


def test_any_sampler_with_any_loss_and_network() -> None:
    for loss, method in METHODS.items():
        head = method.heads[0]
        for sampler in ("uniform", "adasample"):
            made = tiny(loss={"name": loss}, sampler={"name": sampler}, network={"head": head})
            assert (made.loss.name, made.sampler.name) == (loss, sampler)


@pytest.mark.parametrize(
    ("loss", "sampler", "head", "message"),
    [
        ("stochastic_siamese", {}, "linear", "sampler.metric: descriptors of a linear head"),
        ("adasample", {"metric": "euclidean"}, "unit", "sampler.metric: 'euclidean' differs"),
        ("adasample", {"margin": 0.5}, "unit", "sampler.margin: 0.5 differs from loss.margin"),
    ],
)
def test_adasample_with_what_it_cannot_measure_is_refused(
    loss: str, sampler: dict[str, Any], head: str, message: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        tiny(
            loss={"name": loss},
            sampler={"name": "adasample", **sampler},
            network={"head": head},
        )
    assert message in caught.value.message


def test_adasample_with_bits_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"sampler\.name: adasample cannot be used with a binary"):
        tiny(loss={"name": "cdf"}, sampler={"name": "adasample"}, network={"head": "binary"})


def test_euclidean_adasample_takes_a_linear_head() -> None:
    sampler = {"name": "adasample", "metric": "euclidean"}
    made = tiny(loss={"name": "contrastive"}, sampler=sampler, network={"head": "linear"})
    assert made.sampler.model_dump()["metric"] == "euclidean"
