import json
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.unit.training.tiny_runs import tiny
from training.errors import RecipeError
from training.methods import METHODS
from training.methods.baselines import HardNetOptions
from training.methods.samplers import UniformOptions
from training.methods.sdgm import SdgmOptions
from training.runs.recipe import available, load_recipe, recipe_from_table
from training.runs.run import create_run, open_run, read_recipe
from training.runs.schedule import OptimOptions, learning_rate
from training.runs.toml import to_toml


@pytest.mark.parametrize("name", available())
def test_shipped_recipes_load_and_survive_toml(name: str) -> None:
    recipe = load_recipe(name)
    again = recipe_from_table(tomllib.loads(recipe.to_toml()), "again")
    assert again == recipe
    assert again.recipe_id == recipe.recipe_id
    assert recipe.name == name


def test_every_method_and_paper_has_a_recipe() -> None:
    losses = {load_recipe(name).loss.name for name in available()}
    assert {"sdgm", "cdf", "adasample", "stochastic_siamese", "hardnet"} <= losses
    for paper in ("sdgm", "cdf", "adasample", "stochastic"):
        assert {f"{paper}-paper", f"{paper}-cpu"} <= set(available())


def test_tuning_takes_the_network_of_the_model_it_starts_from() -> None:
    recipe = load_recipe("compact-tune")
    model = Path(__file__).parents[4] / recipe.init_from
    published = json.loads((model / "card.json").read_text())["recipe"]["network"]
    assert asdict(recipe.network) == published


def test_paper_settings() -> None:
    sdgm = load_recipe("sdgm-paper")
    assert (sdgm.run.steps, sdgm.run.batch, sdgm.optim.lr) == (200_000, 1024, 1.0)
    assert sdgm.loss == SdgmOptions()
    assert sdgm.network.dropout == 0.3
    tuned = load_recipe("sdgm-paper-finetune").loss
    assert (tuned.margin, tuned.soft, tuned.warmup, tuned.relaxed) == (0.1, False, 0.0, 0.0)
    ada = load_recipe("adasample-paper")
    assert (ada.optim.lr, ada.optim.momentum, ada.sampler.candidates) == (10.0, 0.5, 15)
    assert load_recipe("cdf-paper").optim.lr == 0.1
    assert load_recipe("stochastic-paper").network.name == "residual"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[optim]\nlearning_rate = 1", "r.toml: unknown key 'optim.learning_rate'"),
        ("[optim]\nlt = 1", "unknown key 'optim.lt', did you mean 'lr'?"),
        ("[los]\nname = 'sdgm'", "unknown key 'los', did you mean 'loss'?"),
        ("[loss]\nname = 'sdgn'", "loss.name: no loss 'sdgn', did you mean 'sdgm'?"),
        ("[loss]\nname = 'sdgm'\nmargn = 1", "unknown key 'loss.margn', did you mean 'margin'?"),
        ("[loss]\nmargin = 1", "loss: expected a table with a name"),
        ("loss = 3", "loss: expected a table with a name"),
        ("[network]\nname = 'l3net'", "network.name: no network 'l3net', did you mean 'l2net'?"),
        ("[network]\nhead = 'binary'", "network.head: the loss sdgm takes unit"),
        ("[network]\nhead = 'soft'", "network.head: 'soft' is not one of 'unit', 'binary'"),
        ("[optim]\nlr = 'fast'", "optim.lr: expected float, found 'fast'"),
        ("[optim]\nlr = 0", "optim.lr: expected more than 0, found 0.0"),
        ("[run]\nsteps = 1.5", "run.steps: expected int, found 1.5"),
        ("[run]\nsteps = true", "run.steps: expected int, found True"),
        ("[run]\nbatch = 1", "run.batch: expected at least 2, found 1"),
        ("[[data.train]]\nweight = 1", "missing key 'data.train.0.path'"),
        (
            "[[data.train]]\npath = 'x'\nweight = 0",
            "data.train.0.weight: expected more than 0, found 0.0",
        ),
        ("[data]\ntrain = 'x'", "data.train: expected a list"),
        ("seed = ", "r.toml: not TOML"),
        ("[network]\ndropout = 1.0", "network.dropout: expected at least 0 and less than 1"),
        ("seed = -1", "seed: expected at least 0, found -1"),
        ("[loss]\nname = 'sdgm'\nmargin = 1.0", "loss.margin: expected at least 0 and less than 1"),
        ("[loss]\nname = 'sdgm'\nema = -3", "loss.ema: expected more than 0 and at most 1"),
        ("[loss]\nname = 'sdgm'\nema = nan", "loss.ema: expected more than 0 and at most 1"),
        ("[loss]\nname = 'sdgm'\nalpha = inf", "loss.alpha: expected at least 0, found inf"),
        ("[loss]\nname = 'cdf'\nbins = 1", "loss.bins: expected 0 or at least 2, found 1"),
        ("[loss]\nname = 'hardest'\ndivisor = 0", "loss.divisor: expected at least 1, found 0"),
        (
            "[sampler]\nname = 'adasample'\ncandidates = 1",
            "sampler.candidates: expected at least 2",
        ),
        ("[sampler]\nname = 'adasample'\nrate = 0", "sampler.rate: expected more than 0"),
        ("[data]\nvalidation_pairs = 0", "data.validation_pairs: expected at least 2, found 0"),
        ("[augment]\nscale = -0.1", "augment.scale: expected at least 0, found -0.1"),
        ("[optim]\nschedule = 'milestones'", "optim.milestones: expected at least one"),
        ("[optim]\nmilestones = [30.0]", "optim.milestones: expected fractions of the run"),
    ],
)
def test_errors_name_file_key_and_nearest(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.toml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(path))
    assert message in caught.value.message
    assert "r.toml" in caught.value.message
    assert caught.value.exit_code == 2


def test_unknown_recipe_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'sdgm-cpu'"):
        load_recipe("sdgm-cpuu")
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(str(tmp_path / "none.toml"))


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
    assert recipe.loss.self_weight == "l2"
    assert recipe.run.compile is True
    assert recipe.sampler.lam == float("inf")
    assert recipe.recipe_id != load_recipe("synthetic").recipe_id
    assert recipe_from_table(tomllib.loads(recipe.to_toml()), "x") == recipe


def test_another_loss_forgets_the_options_of_the_old_one() -> None:
    recipe = load_recipe("sdgm-cpu", ["loss.threshold=0.1", "loss.name=hardnet", "loss.margin=0.8"])
    assert recipe.loss == HardNetOptions(margin=0.8, threshold=0.1)
    assert load_recipe("sdgm-cpu", ["loss.name=sdgm"]).loss == load_recipe("sdgm-cpu").loss
    ada = load_recipe("adasample-cpu", ["sampler.name=uniform", "sampler.order=epoch"])
    assert ada.sampler == UniformOptions(order="epoch")
    # A network's options mean the same for all of them.
    assert load_recipe("sdgm-cpu", ["network.name=l2net"]).network.width == 0.5


@pytest.mark.parametrize("bad", ["optim.lr", "data.train.9.path=x", "seed.x.y=1", "optim.lx=1"])
def test_bad_overrides(bad: str) -> None:
    with pytest.raises(RecipeError):
        load_recipe("synthetic", [bad])


def test_any_sampler_with_any_loss_and_network() -> None:
    for loss, method in METHODS.items():
        head = method.heads[0]
        for sampler in ("uniform", "adasample"):
            made = tiny(loss={"name": loss}, sampler={"name": sampler}, network={"head": head})
            assert (made.loss.name, made.sampler.name) == (loss, sampler)


@pytest.mark.parametrize(
    ("loss", "sampler", "head", "message"),
    [
        ("stochastic_siamese", {}, "linear", "sampler.metric: rows of a linear head"),
        ("adasample", {"metric": "euclidean"}, "unit", "sampler.metric: 'euclidean' differs"),
        ("adasample", {"margin": 0.5}, "unit", "sampler.margin: 0.5 differs from loss.margin"),
    ],
)
def test_adasample_with_what_it_cannot_measure_is_refused(
    loss: str, sampler: dict, head: str, message: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        tiny(
            loss={"name": loss},
            sampler={"name": "adasample", **sampler},
            network={"head": head},
        )
    assert message in caught.value.message


def test_euclidean_adasample_takes_a_linear_head() -> None:
    sampler = {"name": "adasample", "metric": "euclidean"}
    made = tiny(loss={"name": "contrastive"}, sampler=sampler, network={"head": "linear"})
    assert made.sampler.metric == "euclidean"


def test_a_run_made_before_a_check_is_still_read(tmp_path: Path) -> None:
    run_dir = create_run(tiny(), tmp_path)
    path = run_dir / "recipe.toml"
    path.write_text(path.read_text().replace("seed = 0", "seed = -1"))
    assert read_recipe(run_dir).seed == -1
    with pytest.raises(RecipeError, match=r"recipe\.toml: seed: expected at least 0"):
        open_run(run_dir)


def test_toml_strings_are_escaped() -> None:
    table = {"a": 'quo"te\\', "b": [1, 2.5], "c": {"d": True, "e": [{"f": "x"}, {"f": "y"}]}}
    assert tomllib.loads(to_toml(table)) == table


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (OptimOptions(lr=1.0, schedule="linear"), {0: 1.0, 500: 0.5, 999: 0.001}),
        (OptimOptions(lr=1.0, schedule="cosine"), {0: 1.0, 500: 0.5}),
        (OptimOptions(lr=1.0, schedule="constant"), {0: 1.0, 999: 1.0}),
        (OptimOptions(lr=1.0, schedule="halving"), {0: 1.0, 100: 0.5, 950: 2**-9}),
        (
            OptimOptions(lr=1.0, schedule="milestones", milestones=(0.5, 0.75)),
            {499: 1.0, 500: 0.1, 750: 0.01},
        ),
        (OptimOptions(lr=1.0, schedule="constant", warmup=0.01), {0: 1 / 11, 9: 10 / 11, 10: 1}),
    ],
)
def test_learning_rates(options: OptimOptions, expected: dict[int, float]) -> None:
    for step, rate in expected.items():
        assert learning_rate(options, step, 1000) == pytest.approx(rate, rel=1e-6)
