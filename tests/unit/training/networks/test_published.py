"""A published model is a place to start from: its graph gives back the network it was made of."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.types import PatchSpec
from tests.unit.training.tiny_runs import new_run
from training.errors import CheckpointError
from training.export.export import export
from training.export.graph import to_onnx
from training.networks import (
    NETWORKS,
    Head,
    NetworkOptions,
    build_network,
)
from training.networks.folding import folded, unfolded
from training.networks.published import float_tensors
from training.runs.directory import read_recipe
from training.runs.loop import train
from training.runs.run import open_run
from training.runs.weights import load_network_weights


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = train(new_run(tmp_path_factory.mktemp("runs"), run={"steps": 3}))
    out = run_dir.parent / "models" / "tiny"
    export(run_dir, out)
    return out


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_unfolding_undoes_folding(name: str) -> None:
    torch.manual_seed(0)
    options = NetworkOptions(name=name, dim=16, dropout=0.1)
    net = build_network(options, 32).train()
    patches = torch.randint(0, 256, (32, 1, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        for _ in range(3):
            net.features(patches)
    fresh = build_network(options, 32)
    fresh.load_state_dict(unfolded(fresh, folded(net).state_dict()))
    with torch.no_grad():
        expected, found = net.eval()(patches), fresh.eval()(patches)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "head"),
    [("surround40", "unit"), ("l2net", "binary"), ("hynet", "unit"), ("residual", "linear")],
)
def test_an_exported_graph_holds_the_network(name: str, head: Head) -> None:
    torch.manual_seed(0)
    options = NetworkOptions(name=name, dim=16, head=head, width=0.5)
    net = build_network(options, 32).train()
    patches = torch.randint(0, 256, (32, 1, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        # The exporter keeps one of several constants that are equal, as fresh biases are.
        for parameter in net.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
        net.features(patches)
    fresh = build_network(options, 32)
    fresh.load_state_dict(unfolded(fresh, float_tensors(to_onnx(net, PatchSpec()))))
    with torch.no_grad():
        torch.testing.assert_close(fresh.eval()(patches), net.eval()(patches), rtol=0, atol=1e-4)


def test_training_starts_from_a_model(model: Path, tmp_path: Path) -> None:
    run = open_run(new_run(tmp_path, name="tuned", init_from=str(model)))
    assert "model.onnx" in run.notes[0]
    patches = np.load(run.directory / "samples.npy")[:50]
    with torch.no_grad():
        found = run.state.net.eval()(torch.from_numpy(patches)).numpy()
    expected = OnnxDescriptor(model).describe_patches(patches)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    other = open_run(new_run(tmp_path, name="bits", init_from=str(model), network={"dim": 24}))
    assert "with new last layers" in other.notes[0]
    tuned = train(new_run(tmp_path, name="tuned", init_from=str(model), run={"steps": 2}))
    assert read_recipe(tuned).init_from == str(model)
    assert (tuned / "final.safetensors").exists()


def test_models_that_cannot_be_trained_on_are_refused(model: Path, tmp_path: Path) -> None:
    net = open_run(new_run(tmp_path, name="tuned", init_from=str(model))).state.net
    altered = tmp_path / "altered"
    shutil.copytree(model, altered)
    graph = altered / "model.onnx"
    graph.write_bytes(graph.read_bytes() + b"\x00")
    with pytest.raises(CheckpointError, match=r"model\.onnx"):
        load_network_weights(net, altered)
    shipped = Path(__file__).parents[4] / "models"
    with pytest.raises(CheckpointError, match="quantised"):
        load_network_weights(net, shipped / "compact-int8")
    with pytest.raises(CheckpointError, match="another network"):
        load_network_weights(net, shipped / "compact")
