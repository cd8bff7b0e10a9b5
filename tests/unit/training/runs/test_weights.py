"""Start a run from the weights of another one, of the same network or of a similar one."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.training.tiny_runs import new_run
from training.errors import CheckpointError
from training.networks import NetworkOptions, build_network
from training.runs.checkpoint import write_tensors
from training.runs.loop import train
from training.runs.run import open_run
from training.runs.weights import load_network_weights, read_network, start_network


def test_fine_tuning_starts_from_given_weights(tmp_path: Path) -> None:
    first = train(new_run(tmp_path))
    second = new_run(tmp_path, name="tuned", init_from=str(first))
    run = open_run(second)
    expected = read_network(first).tensors
    for key, value in run.network_tensors().items():
        torch.testing.assert_close(value.contiguous(), expected[key], rtol=0, atol=0)
    assert run.state.step == 0
    longer = open_run(new_run(tmp_path, name="longer", init_from=str(first), network={"dim": 24}))
    assert "with new last layers" in longer.notes[0]
    taken = [k for k, v in longer.network_tensors().items() if v.shape == expected[k].shape]
    assert 0 < len(taken) < len(expected)
    kept = [k for k in taken if "num_batches_tracked" not in k and "running" not in k]
    for key in kept:
        value = longer.network_tensors()[key].contiguous()
        torch.testing.assert_close(value, expected[key], rtol=0, atol=0)
    wider = open_run(new_run(tmp_path, name="wider", init_from=str(first), network={"width": 0.5}))
    assert "widened" in wider.notes[0]
    patches = torch.from_numpy(np.load(wider.directory / "samples.npy")[:50])
    with torch.no_grad():
        cosine = (wider.state.net.eval()(patches) * run.state.net.eval()(patches)).sum(1)
    assert cosine.mean() > 0.9
    less = open_run(new_run(tmp_path, name="less", init_from=str(first), network={"width": 0.2}))
    assert "narrowed" in less.notes[0]
    assert set(less.network_tensors()["net.trunk.1.weight"].flatten().tolist()) < set(
        expected["net.trunk.1.weight"].flatten().tolist()
    )
    wrong = new_run(tmp_path, name="wrong", init_from=str(first), network={"name": "slim"})
    with pytest.raises(CheckpointError, match="another network"):
        open_run(wrong)
    # The name alone will do while there is one run of it.
    load_network_weights(run.state.net, tmp_path / "tiny")
    with pytest.raises(CheckpointError, match="no weights"):
        load_network_weights(run.state.net, tmp_path)


def test_a_shorter_network_takes_the_first_layers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    deep = build_network(NetworkOptions(name="compact40", width=0.25), 32)
    weights = tmp_path / "deep.safetensors"
    write_tensors(weights, {f"net.{k}": v for k, v in deep.state_dict().items()}, {})
    short = build_network(NetworkOptions(name="surround40-short", width=0.25), 48)
    last = short.get_parameter("trunk.14.weight").clone()
    _, changed = start_network(short, weights, seed=0)
    assert changed == "with new last layers"
    for place in (1, 4, 7, 10):
        name = f"trunk.{place}.weight"
        assert torch.equal(short.get_parameter(name), deep.get_parameter(name))
    assert torch.equal(short.get_parameter("trunk.14.weight"), last)
    both = build_network(NetworkOptions(name="surround40", width=0.25), 64)
    assert start_network(both, weights, seed=0)[1] == "with a surround added"
    # The other way round a layer is missing.
    backwards = tmp_path / "short.safetensors"
    write_tensors(backwards, {f"net.{k}": v for k, v in short.state_dict().items()}, {})
    with pytest.raises(CheckpointError, match="another network"):
        start_network(deep, backwards, seed=0)
