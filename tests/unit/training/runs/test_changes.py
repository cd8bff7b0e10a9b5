"""A run goes on with other execution options, and a finished one with more steps."""

from pathlib import Path

import pytest
import torch

from tests.unit.training.tiny_runs import Stopped, new_run, stop_at, tiny
from training.errors import CheckpointError, RecipeError
from training.runs.changes import EXTENDED_ENTRY, change_run
from training.runs.directory import create_run, read_recipe
from training.runs.loop import train
from training.runs.report import read_log
from training.runs.weights import read_network


@pytest.mark.parametrize(
    "changes", [{"threads": 2}, {"device": "auto"}, {"compile": True}, {"log_every": 7}]
)
def test_execution_options_are_not_part_of_the_identity(changes: dict[str, object]) -> None:
    assert tiny(run=changes).recipe_id == tiny().recipe_id


@pytest.mark.parametrize("changes", [{"steps": 7}, {"batch": 8}, {"validate_every": 1}])
def test_the_other_options_are(changes: dict[str, object]) -> None:
    assert tiny(run=changes).recipe_id != tiny().recipe_id


def test_an_interrupted_run_goes_on_with_other_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = new_run(tmp_path)
    with monkeypatch.context() as patch:
        stop_at(patch, 3)
        with pytest.raises(Stopped):
            train(run_dir)
    assert create_run(tiny(run={"log_every": 1}), tmp_path) == run_dir
    assert read_recipe(run_dir).run.log_every == 1
    assert change_run(run_dir, ["run.log_every=3"]) == run_dir
    train(run_dir)
    assert [line["step"] for line in read_log(run_dir) if "loss" in line] == [2, 3, 6]
    whole = train(new_run(tmp_path / "whole"))
    for key, value in read_network(whole).tensors.items():
        torch.testing.assert_close(read_network(run_dir).tensors[key], value, rtol=0, atol=0)


def test_a_finished_run_is_extended(tmp_path: Path) -> None:
    constant = {"schedule": "constant", "lr": 0.1}
    run_dir = train(new_run(tmp_path, optim=constant))
    before = read_network(run_dir)
    longer = change_run(run_dir, ["run.steps=9"])
    assert longer != run_dir
    train(longer)
    assert (longer / "finished").exists()
    found = read_network(longer)
    assert found.entries["recipe"]["run"]["steps"] == 9
    # At a constant rate, more steps are the same as a longer run from the beginning.
    whole = train(new_run(tmp_path / "whole", optim=constant, run={"steps": 9}))
    for key, value in read_network(whole).tensors.items():
        torch.testing.assert_close(found.tensors[key], value, rtol=0, atol=0)
    assert [line["step"] for line in read_log(longer) if "loss" in line] == [2, 4, 6, 8, 9]
    # The run itself is as it was; asking again finds the extended one.
    assert all(torch.equal(read_network(run_dir).tensors[k], v) for k, v in before.tensors.items())
    assert change_run(run_dir, ["run.steps=9"]) == longer


def test_the_checkpoint_says_which_run_it_extends(tmp_path: Path) -> None:
    run_dir = train(new_run(tmp_path))
    longer = change_run(run_dir, ["run.steps=9"])
    stored = read_network(longer)
    assert stored.entries[EXTENDED_ENTRY] == read_recipe(run_dir).recipe_id


def test_what_cannot_be_extended(tmp_path: Path) -> None:
    run_dir = new_run(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        change_run(run_dir, ["run.steps=9"])
    train(run_dir)
    with pytest.raises(RecipeError, match="has done 6 steps already"):
        change_run(run_dir, ["run.steps=5"])
    with pytest.raises(RecipeError, match="cannot be changed, except for"):
        change_run(run_dir, ["run.threads=1", "optim.lr=3"])
