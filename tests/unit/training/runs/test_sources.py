from pathlib import Path

import pytest

from tests.unit.training.tiny_runs import new_run
from training.errors import DataError
from training.runs.run import open_run

STORE = {"path": "synthetic:2:150"}


def test_a_training_store_is_not_given_twice(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"given twice in data\.train"):
        open_run(new_run(tmp_path, data={"train": [STORE, STORE]}))
    overlap = [STORE, {**STORE, "scenes": ["texture-0"]}]
    with pytest.raises(DataError, match=r"given twice in data\.train"):
        open_run(new_run(tmp_path, data={"train": overlap}))


def test_different_scenes_of_one_store_can_be_weighted_apart(tmp_path: Path) -> None:
    parts = [
        {**STORE, "scenes": ["texture-0"], "weight": 0.5},
        {**STORE, "without_scenes": ["texture-0"], "weight": 1.5},
    ]
    run = open_run(new_run(tmp_path, data={"train": parts}, run={"batch": 4}))
    assert run.batches.shares == [1, 3]
