import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from tests.unit.training.tiny_runs import (
    Stopped,
    new_run,
    stop_at,
    tiny,
)
from training.errors import CheckpointError, NonFiniteLoss, RecipeError
from training.lab.plot import cdf_weights, plot_run
from training.methods import METHODS
from training.methods.cdf import CdfOptions
from training.methods.contract import LossOutput, Pairs
from training.runs import loop
from training.runs.checkpoint import Checkpoints, read_tensors, write_tensors
from training.runs.directory import create_run, read_recipe
from training.runs.loop import train
from training.runs.recipe import recipe_from_table
from training.runs.report import read_log
from training.runs.run import choose_device, open_run
from training.runs.weights import read_network


def weights_digest(run_dir: Path) -> str:
    stored = read_tensors(run_dir / "final.safetensors")
    hasher = hashlib.sha256()
    for name in sorted(stored.tensors):
        hasher.update(name.encode())
        hasher.update(stored.tensors[name].numpy().tobytes())
    return hasher.hexdigest()


RUNS: dict[str, dict[str, Any]] = {
    **{
        name: {
            "loss": {"name": name},
            "network": {"head": method.heads[-1]},
            "optim": {"lr": 1e-4 if "linear" in method.heads else 0.1},
        }
        for name, method in METHODS.items()
    },
    "sdgm": {"loss": {"name": "sdgm", "warmup": 0.3, "relaxed": 0.0, "power_init": 0.0}},
    # Stopped after the warm-up has ended: the powers must not be taken anew once more.
    "sdgm-reset": {
        "loss": {
            "name": "sdgm",
            "warmup": 0.1,
            "relaxed": 0.0,
            "power_init": 0.0,
            "reset_powers": True,
        }
    },
    "cdf-float": {"loss": {"name": "cdf"}},
    "adasample": {
        "loss": {"name": "adasample"},
        "sampler": {"name": "adasample", "candidates": 4},
    },
    "adam": {"optim": {"name": "adam", "lr": 0.01}},
}


@pytest.mark.parametrize("name", RUNS)
def test_an_interrupted_run_ends_like_an_unbroken_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(new_run(tmp_path / "whole", **RUNS[name]))
    broken = new_run(tmp_path / "broken", **RUNS[name])
    with monkeypatch.context() as patch:
        stop_at(patch, 3)
        with pytest.raises(Stopped):
            train(broken)
    assert [p.name for p in Checkpoints(broken / "checkpoints").files()] == [
        "step-000000002.safetensors"
    ]
    train(broken)
    assert weights_digest(broken) == weights_digest(whole)
    logs = [
        [
            {k: v for k, v in x.items() if k not in ("patches_per_s", "data_wait")}
            for x in read_log(d)
        ]
        for d in (whole, broken)
    ]
    assert logs[0] == logs[1]
    assert {"loss", "lr", "positive/mean", "negative/std"} <= set(logs[0][0])


def test_a_run_leaves_what_it_should(tmp_path: Path) -> None:
    run_dir = train(new_run(tmp_path))
    names = {p.name for p in run_dir.iterdir()}
    assert {"recipe.toml", "log.jsonl", "final.safetensors", "samples.npy", "finished"} <= names
    assert read_recipe(run_dir) == tiny()
    kept = [p.name for p in Checkpoints(run_dir / "checkpoints").files()]
    assert kept == ["step-000000006.safetensors", "step-000000004.safetensors"]
    rates = [line for line in read_log(run_dir) if "fpr95/synthetic-2-40" in line]
    assert [line["step"] for line in rates] == [3, 6]
    assert list((run_dir / "tensorboard").iterdir())
    pngs = plot_run(run_dir, tmp_path / "plots")
    assert [p.name for p in pngs] == ["curves.png", "distances-synthetic-2-40.png"]
    assert all(p.read_bytes()[:4] == b"\x89PNG" for p in pngs)
    # A finished run has nothing to do.
    before = weights_digest(run_dir)
    train(run_dir)
    assert weights_digest(run_dir) == before


@pytest.mark.parametrize("name", ["sdgm", "cdf-float"])
def test_weight_functions_are_drawn(name: str, tmp_path: Path) -> None:
    run_dir = train(new_run(tmp_path, **RUNS[name], run={"steps": 2}))
    assert (tmp_path / "plots" / "weights.png") in plot_run(run_dir, tmp_path / "plots")


@pytest.mark.parametrize("kind", ["difference", "positive", "negative"])
def test_the_drawn_weights_are_those_of_the_loss(
    kind: Literal["difference", "positive", "negative"],
) -> None:
    loss: Any = METHODS["cdf"].build(CdfOptions(distribution=kind, bins=41), "unit", 64)
    generator = torch.Generator().manual_seed(0)
    positive, negative = torch.rand(2, 64, generator=generator, dtype=torch.float64) * 1.9
    given = loss.weights(positive, negative)
    (_, density), (label, (x, drawn)) = cdf_weights(loss.distribution, kind).items()
    at = {"difference": positive - negative, "positive": positive, "negative": negative}[kind]
    below = np.searchsorted(x, at.numpy(), side="right") - 1
    assert drawn[below] == pytest.approx(given.numpy())
    assert density[0].tolist() == x.tolist()
    assert ("1 - CDF" in label) == (kind == "negative")


def test_validation_sets_of_one_name_are_told_apart(tmp_path: Path) -> None:
    twice = [{"path": "synthetic:2:150", "scenes": [f"texture-{n}"]} for n in (0, 1)]
    run = open_run(new_run(tmp_path, data={"validation": twice}))
    assert [s.name for s in run.validation] == ["synthetic-2-150", "synthetic-2-150-2"]


def test_a_nan_stops_and_saves_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = new_run(tmp_path)
    run = open_run(run_dir)
    original = run.state.loss

    def poisoned(pairs: Pairs) -> LossOutput:
        output = original(pairs)
        return type(output)(output.loss * float("nan"), output.positive, output.negative)

    monkeypatch.setattr(run.state, "loss", poisoned)
    with pytest.raises(NonFiniteLoss, match="step 0: the loss"):
        train(run_dir, run)
    (path,) = run_dir.glob("not-finite-*.safetensors")
    saved = read_tensors(path)
    assert saved.tensors["patches"].shape == (12, 2, 1, 32, 32)
    assert saved.entries["step"] == 0
    assert not Checkpoints(run_dir / "checkpoints").files()


def test_a_nan_gradient_stops_too(tmp_path: Path) -> None:
    run_dir = new_run(tmp_path)
    run = open_run(run_dir)
    weight = next(run.state.net.parameters())
    weight.register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(NonFiniteLoss):
        train(run_dir, run)
    assert bool(torch.isfinite(weight).all())


def test_damaged_checkpoints(tmp_path: Path) -> None:
    run_dir = train(new_run(tmp_path))
    digest = weights_digest(run_dir)
    newest, older = Checkpoints(run_dir / "checkpoints").files()
    pristine = newest.read_bytes()
    flipped = bytearray(pristine)
    flipped[-5] ^= 1
    for damage in (b"", pristine[:100], pristine[:-7], bytes(flipped)):
        newest.write_bytes(damage)
        run = open_run(run_dir)
        assert run.state.step == 4
        assert "skipped a damaged checkpoint" in run.notes[0]
        assert newest.name in run.notes[0]
    train(run_dir)
    assert weights_digest(run_dir) == digest
    newest, older = Checkpoints(run_dir / "checkpoints").files()
    for path in (newest, older):
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(CheckpointError, match="no checkpoint is readable"):
        open_run(run_dir)


def test_stray_files_are_swept_and_other_recipes_refused(tmp_path: Path) -> None:
    run_dir = train(new_run(tmp_path))
    stray = run_dir / "checkpoints" / ".step-000000009.safetensors.77.partial"
    stray.write_bytes(b"half")
    open_run(run_dir)
    assert not stray.exists()
    other = create_run(tiny(seed=9), tmp_path)
    shutil.copytree(run_dir / "checkpoints", other / "checkpoints")
    with pytest.raises(CheckpointError, match="belong to the recipe"):
        open_run(other)


def test_saving_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": torch.ones(3)}, {"step": 1})
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            write_tensors(path, {"a": torch.zeros(3)}, {"step": 2})
    assert read_tensors(path).entries == {"step": 1}
    assert read_tensors(path).tensors["a"].tolist() == [1, 1, 1]


def test_a_cut_log_line_is_dropped(tmp_path: Path) -> None:
    run_dir = train(new_run(tmp_path))
    lines = read_log(run_dir)
    with (run_dir / "log.jsonl").open("a") as log:
        log.write('{"step": 9, "lo')
    assert read_log(run_dir) == lines
    train(run_dir)
    written = (run_dir / "log.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == lines


def test_seeds_and_layouts(tmp_path: Path) -> None:
    one = train(new_run(tmp_path / "1"))
    two = train(new_run(tmp_path / "2"))
    other = train(new_run(tmp_path / "3", seed=1))
    assert weights_digest(one) == weights_digest(two) != weights_digest(other)
    # Dropout draws in the order of memory, so layouts only agree without it.
    common = {"network": {"dropout": 0.0}}
    last, plain = (
        train(new_run(tmp_path / str(flag), **common, run={"steps": 2, "channels_last": flag}))
        for flag in (True, False)
    )
    first, second = (read_network(d).tensors for d in (last, plain))
    for key, value in first.items():
        torch.testing.assert_close(value, second[key], rtol=1e-3, atol=1e-4)


def test_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(tiny(run={"device": "auto"})).type == "cpu"
    with pytest.raises(RecipeError, match=r"run\.device"):
        choose_device(tiny(run={"device": "cuda"}))
    with pytest.raises(RecipeError, match=r"run\.amp"):
        choose_device(tiny(run={"amp": True}))
    with pytest.raises(RecipeError, match=r"data\.train"):
        open_run(create_run(recipe_from_table({"name": "empty"}, "x"), tmp_path))


def test_checkpoints_also_follow_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(new_run(tmp_path, run={"checkpoint_steps": 0, "checkpoint_minutes": 1.0}))
    run.state.step = 2
    now = time.monotonic()
    assert not loop._is_save_due(run, now)
    assert loop._is_save_due(run, now - 61)
