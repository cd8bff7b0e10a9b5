"""A run that starts from a model refuses patches cut in another way, and says how to cut them."""

from __future__ import annotations

from pathlib import Path

import pytest

from matchserve.models.registry import shipped_models_dir
from matchserve.types import PatchSpec
from tests.unit.training.tiny_runs import new_run
from training.data.photos.synthetic import write_synthetic
from training.errors import DataError
from training.runs.directory import find_start
from training.runs.run import open_run

NETWORK = {"name": "surround32-short", "width": 1.0, "dim": 128, "dropout": 0.0}


@pytest.mark.parametrize("init_from", ["compact", "models/compact"])
def test_a_shipped_model_is_found_from_any_folder(
    init_from: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_start(init_from, tmp_path / "runs" / "x") == shipped_models_dir() / "compact"
    assert find_start("nothing", tmp_path / "runs" / "x") == Path("nothing")
    (tmp_path / "runs" / "compact").mkdir(parents=True)  # a run of that name comes first
    assert find_start(init_from, tmp_path / "runs" / "x") == tmp_path / "runs" / "compact"


def test_another_crop_is_refused_with_the_options_to_use(tmp_path: Path) -> None:
    run_dir = new_run(tmp_path, network=NETWORK, init_from="compact")
    with pytest.raises(DataError) as refused:
        open_run(run_dir)
    assert "synthetic-1-60: its patches were cut with --magnification 12 --size 32" in str(
        refused.value
    )
    assert "compact needs --magnification 36 --size 48" in str(refused.value)
    assert "data photos PHOTOS -o STORE --magnification 36 --size 48" in str(refused.value)


def test_the_right_crop_is_taken(tmp_path: Path) -> None:
    spec = PatchSpec(size=48, magnification=36.0)
    stores = [tmp_path / name for name in ("train", "validation")]
    for seed, store in enumerate(stores):
        write_synthetic(store, seed=seed, classes=30, spec=spec)
    data = {
        "train": [{"path": str(stores[0])}],
        "validation": [{"path": str(stores[1])}],
        "validation_pairs": 20,
    }
    run = open_run(new_run(tmp_path, network=NETWORK, init_from="compact", data=data))
    assert run.notes == [f"started from {shipped_models_dir() / 'compact' / 'model.onnx'}"]
