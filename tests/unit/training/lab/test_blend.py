"""A run averaged with what it started from."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from tests.unit.training.tiny_runs import new_run
from training.cli import app
from training.errors import CheckpointError
from training.export.export import export
from training.lab.blend import blend, measure_statistics
from training.networks import NetworkOptions, build_network
from training.runs.loop import train
from training.runs.run import open_run
from training.runs.weights import read_network


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train(new_run(folder))
    return train(new_run(folder, name="tuned", init_from="runs/tiny", seed=1))


def weights(run: Path) -> dict[str, torch.Tensor]:
    tensors = read_network(run).tensors
    return {k: v for k, v in tensors.items() if k.endswith((".weight", ".bias"))}


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_weights_lie_between(tuned: Path, tmp_path: Path, share: float) -> None:
    found = blend(tuned, tmp_path / "blended", share)
    start, end = weights(tuned.parent / "tiny"), weights(tuned)
    assert any(not torch.equal(start[key], end[key]) for key in end)
    for key, value in weights(tmp_path / "blended").items():
        torch.testing.assert_close(value, (1 - share) * start[key] + share * end[key])
    assert len(found) == 1


def test_layers_that_the_start_did_not_have_are_those_the_run_began_with(
    tuned: Path, tmp_path: Path
) -> None:
    wider = {"name": "patchify48", "width": 0.25, "dim": 24, "dropout": 0.1}
    run = new_run(tuned.parent, name="wider", init_from="runs/tiny", network=wider, seed=2)
    began = {f"net.{k}": v.clone() for k, v in open_run(run).state.net.state_dict().items()}
    blend(train(run), tmp_path / "blended", 0.0)
    for key, value in weights(tmp_path / "blended").items():
        torch.testing.assert_close(value, began[key])


def test_a_blend_has_statistics_of_its_own(tuned: Path, tmp_path: Path) -> None:
    blend(tuned, tmp_path / "blended", 1.0)
    own, of_run = read_network(tmp_path / "blended").tensors, read_network(tuned).tensors
    means = [key for key in own if key.endswith("running_mean")]
    assert means
    assert all(not torch.equal(own[key], of_run[key]) for key in means)


def test_statistics_are_those_of_the_batches() -> None:
    torch.manual_seed(0)
    net = build_network(NetworkOptions(name="patchify48", width=0.25, dim=16), 32)
    batches = [255 * torch.rand(8, 1, 32, 32) for _ in range(3)]
    measure_statistics(net, batches)
    first = next(i for i, m in enumerate(net.trunk) if isinstance(m, nn.BatchNorm2d))
    seen = [net.trunk[:first](batch) for batch in batches]
    norm = net.trunk[first]
    expected = torch.stack([maps.mean((0, 2, 3)) for maps in seen]).mean(0)
    torch.testing.assert_close(norm.running_mean, expected)
    expected = torch.stack([maps.transpose(0, 1).flatten(1).var(1) for maps in seen]).mean(0)
    torch.testing.assert_close(norm.running_var, expected)
    assert norm.momentum == 0.1
    assert not net.training


def test_a_blend_is_exported_and_says_so(tuned: Path, tmp_path: Path) -> None:
    blended = tmp_path / "blended"
    found = blend(tuned, blended, 0.5)
    card, _ = export(blended, tmp_path / "m" / "blended")
    assert card.recipe["blend_share"] == 0.5
    assert card.recipe["init_from_sha256"] == read_network(tuned).entries["init_from_sha256"]
    assert card.metrics["validation_fpr95"] == pytest.approx(found)
    again = tmp_path / "again"
    blend(tuned, again, 0.5)
    for key, value in read_network(again).tensors.items():
        np.testing.assert_array_equal(value, read_network(blended).tensors[key])


def test_the_command_blends_and_a_blend_is_not_trained_on(
    tuned: Path, tmp_path: Path, heaps_kept: list[str]
) -> None:
    blended = tmp_path / "blended"
    done = CliRunner().invoke(app, ["blend", str(tuned), "-o", str(blended), "--share", "0.5"])
    assert done.exit_code == 0, done.output
    before = (blended / "final.safetensors").read_bytes()
    again = CliRunner().invoke(app, ["train", str(blended)])
    assert isinstance(again.exception, CheckpointError)
    assert heaps_kept == ["kept"]
    assert (blended / "final.safetensors").read_bytes() == before
    started = open_run(new_run(tmp_path, init_from=str(blended)))
    assert started.notes == [f"started from {blended / 'final.safetensors'}"]


def test_what_cannot_be_blended(tuned: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="already exists"):
        blend(tuned, tmp_path, 0.5)
    unfinished = new_run(tmp_path, name="unfinished", init_from=str(tuned))
    open_run(unfinished)
    with pytest.raises(CheckpointError, match="not finished"):
        blend(unfinished, tmp_path / "out", 0.5)
    with pytest.raises(CheckpointError, match="has no init_from"):
        blend(next(tuned.parent.glob("tiny-*")), tmp_path / "out", 0.5)
    moved = tmp_path / "elsewhere"
    shutil.copytree(tuned, moved / tuned.name)
    train(new_run(moved, seed=7))
    with pytest.raises(CheckpointError, match="has changed since"):
        blend(moved / tuned.name, tmp_path / "out", 0.5)
    assert not (tmp_path / "out").exists()
