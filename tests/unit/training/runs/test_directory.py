import json
from pathlib import Path

import pytest
import torch

from tests.unit.training.tiny_runs import tiny
from training.errors import CheckpointError, RecipeError
from training.runs.checkpoint import Checkpoints
from training.runs.directory import create_run, find_run, find_start, read_recipe
from training.runs.run import build_state, open_run
from training.runs.weights import load_network_weights, read_network

# A run of four steps with AdaSample, made before recipes became pydantic models.
BEFORE = Path(__file__).parent / "run_before_pydantic"


def test_an_old_run_is_read_with_the_same_id() -> None:
    recipe = read_recipe(BEFORE)
    stored = read_network(BEFORE)
    assert recipe.full_id == "e617308784bc"
    assert stored.entries["recipe_id"] == recipe.full_id
    # Cards and checkpoints hold the recipe as JSON.
    values = json.loads(json.dumps(recipe.model_dump()))
    assert values["run"].pop("keep_every") == 0
    assert values["run"].pop("workers") == 1
    for key in ("invert", "curve", "shading", "blur"):
        assert values["augment"].pop(key) == 0.0
    for source in (*values["data"]["train"], *values["data"]["validation"]):
        assert source.pop("labels") == []
    assert stored.entries["recipe"] == values


def test_a_run_named_by_its_old_id_is_continued(tmp_path: Path) -> None:
    recipe = tiny()
    assert recipe.full_id != recipe.recipe_id
    old = tmp_path / f"tiny-{recipe.full_id}"
    old.mkdir()
    assert create_run(recipe, tmp_path) == old
    assert read_recipe(old) == recipe


def test_an_old_checkpoint_is_restored() -> None:
    recipe = read_recipe(BEFORE)
    state = build_state(recipe, 32, torch.device("cpu"))
    stored, skipped = Checkpoints(BEFORE / "checkpoints").newest()
    assert stored is not None
    assert not skipped
    state.restore(stored.tensors, stored.entries["step"])
    assert state.step == 2
    for key, value in state.tensors().items():
        torch.testing.assert_close(value, stored.tensors[key], rtol=0, atol=0)
    load_network_weights(state.net, BEFORE)


def test_a_recipe_that_is_not_accepted_says_what_to_do(tmp_path: Path) -> None:
    run_dir = create_run(tiny(), tmp_path)
    path = run_dir / "recipe.toml"
    path.write_text(path.read_text().replace("seed = 0", "seed = -1"))
    for read in (read_recipe, open_run):
        with pytest.raises(RecipeError) as caught:
            read(run_dir)
        assert "recipe.toml:2: seed: expected at least 0, found -1" in caught.value.message
        assert "use the version of matchserve that made the run" in caught.value.message


def test_a_run_is_found_by_its_name(tmp_path: Path) -> None:
    one = create_run(tiny(), tmp_path)
    create_run(tiny(name="tiny-finetune"), tmp_path)
    assert find_run(tmp_path / "tiny") == one
    assert find_run(tmp_path / "none") == tmp_path / "none"
    assert find_start("runs/tiny", tmp_path / "other-run") == one
    create_run(tiny(seed=1), tmp_path)
    with pytest.raises(CheckpointError, match="several runs have this name"):
        find_run(tmp_path / "tiny")
