from pathlib import Path

import pytest

from matchserve.types import PatchSpec
from tests.unit.training.tiny_runs import new_run
from training.data.photos.synthetic import write_synthetic
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


def test_validation_patches_of_another_size_are_refused(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "large", seed=1, classes=40, spec=PatchSpec(size=48))
    data = {"train": [STORE], "validation": [{"path": str(tmp_path / "large")}]}
    with pytest.raises(DataError, match=r"large: its patches have 48 samples a side"):
        open_run(new_run(tmp_path, data=data))
