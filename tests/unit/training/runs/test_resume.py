"""What a run does with what it finds: its own files, cut off or changed, and another run's."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from matchserve.files import write_text_whole
from tests.unit.training.tiny_runs import (
    Stopped,
    new_run,
    stop_at,
    tiny,
)
from training.data.photos.synthetic import write_synthetic
from training.errors import CheckpointError, RecipeError
from training.export.export import export
from training.export.trained import Trained
from training.runs.checkpoint import Checkpoints, read_tensors, write_tensors
from training.runs.directory import create_run, read_recipe
from training.runs.loop import train
from training.runs.report import Reporter, read_log
from training.runs.run import open_run
from training.runs.weights import read_network


def broken_run(folder: Path, monkeypatch: pytest.MonkeyPatch, **sections: Any) -> Path:
    """A run that was stopped after its checkpoint of step 2."""
    run_dir = new_run(folder, **sections)
    with monkeypatch.context() as patch:
        stop_at(patch, 3)
        with pytest.raises(Stopped):
            train(run_dir)
    return run_dir


def failing_flush(_descriptor: int) -> None:
    raise OSError("no space left")


def test_other_patches_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = broken_run(tmp_path, monkeypatch)
    store = tmp_path / "stores" / "synthetic-1-60"
    shutil.rmtree(store)
    write_synthetic(store, seed=9, classes=60)
    with pytest.raises(CheckpointError, match="synthetic-1-60: not the patches"):
        open_run(run_dir)


def test_a_checkpoint_with_other_keys_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = broken_run(tmp_path, monkeypatch)
    (path,) = Checkpoints(run_dir / "checkpoints").files()
    stored = read_tensors(path)
    write_tensors(path, {**stored.tensors, "net.extra": torch.ones(1)}, stored.entries)
    with pytest.raises(CheckpointError, match=f"{path.name}: the state belongs to another version"):
        open_run(run_dir)


def test_a_recipe_cut_off_by_a_kill_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", failing_flush)
        with pytest.raises(OSError, match="no space"):
            new_run(tmp_path)
    run_dir = new_run(tmp_path)
    assert read_recipe(run_dir) == tiny()
    (run_dir / "recipe.toml").write_text("")
    assert create_run(tiny(), tmp_path) == run_dir
    assert read_recipe(run_dir) == tiny()


def test_only_the_first_rank_writes_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert list(new_run(tmp_path).iterdir()) == []


def test_strays_of_the_run_directory_are_swept(tmp_path: Path) -> None:
    run_dir = new_run(tmp_path)
    strays = [run_dir / f".{n}.77.partial" for n in ("final.safetensors", "log.jsonl")]
    for stray in strays:
        stray.write_bytes(b"half")
    open_run(run_dir)
    assert not any(stray.exists() for stray in strays)
    assert (run_dir / "recipe.toml").exists()


def test_the_log_is_cut_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f'{{"step": {n}, "loss": 1.0}}\n' for n in (2, 4, 6))
    write_text_whole(tmp_path / "log.jsonl", text)
    monkeypatch.setattr("os.fsync", failing_flush)
    with pytest.raises(OSError, match="no space"):
        Reporter(tmp_path, first=4, steps=6, is_active=True).__enter__()
    assert [line["step"] for line in read_log(tmp_path)] == [2, 4, 6]


def test_a_fine_tune_needs_its_source_once_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(new_run(tmp_path, run={"steps": 2}))
    digest = hashlib.sha256((first / "final.safetensors").read_bytes()).hexdigest()
    # Given as from the folder above the runs, which is not where this process is.
    tuned = broken_run(tmp_path, monkeypatch, name="tuned", init_from="elsewhere/tiny")
    shutil.rmtree(first)
    assert open_run(tuned).notes == ["resumed at step 2"]
    train(tuned)
    assert read_network(tuned).entries["init_from_sha256"] == digest
    assert Trained.load(tuned).provenance == {"init_from_sha256": digest}
    card, _ = export(tuned, tmp_path / "m" / "tuned")
    assert card.recipe["init_from_sha256"] == digest


def test_an_unfinished_source_is_said_and_an_ambiguous_one_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = broken_run(tmp_path, monkeypatch)
    tuned = new_run(tmp_path, name="tuned", init_from="runs/tiny")
    notes = open_run(tuned).notes
    assert "step-000000002.safetensors" in notes[0]
    assert notes[1].startswith(f"{first}: not finished")
    second = new_run(tmp_path, seed=5)
    with pytest.raises(CheckpointError, match="several runs") as caught:
        open_run(tuned)
    assert first.name in caught.value.message
    assert second.name in caught.value.message


def test_a_source_without_a_pair_is_refused(tmp_path: Path) -> None:
    sources = [{"path": "synthetic:1:60"}, {"path": "synthetic:3:60", "weight": 0.001}]
    with pytest.raises(RecipeError, match=r"synthetic:3:60: with weight 0\.001 it gets no pair"):
        open_run(new_run(tmp_path, data={"train": sources}))
