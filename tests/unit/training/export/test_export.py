import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from matchserve.models.card import read_card
from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.models.registry import load_descriptor
from matchserve.types import PatchSpec
from tests.unit.training.tiny_runs import new_run
from training.errors import ExportRefused
from training.export.export import export, write_model
from training.export.graph import to_onnx
from training.export.parity import compare
from training.export.quantise import quantise
from training.export.trained import Trained, reference
from training.networks import NETWORKS, NetworkOptions, build_network
from training.networks.folding import folded
from training.networks.layers import DescriptorNet, Head
from training.runs.loop import train
from training.runs.validation import ValidationSet

SPEC = PatchSpec()


def patches(count: int, seed: int = 0) -> np.ndarray:
    """Smooth random patches and, first, a constant one."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 1, 8, 8, generator=generator) * 255
    smooth = torch.nn.functional.interpolate(coarse, size=32, mode="bilinear")
    made = smooth.round().to(torch.uint8).numpy()
    made[0] = 128
    return made


def trained_net(name: str, head: Head = "unit", **changes: Any) -> DescriptorNet:
    """A network whose batch statistics are those of data and whose biases are not 0, as trained.

    With biases of 0 a constant patch has the descriptor 0 in a network without batch statistics.
    """
    torch.manual_seed(1)
    options = NetworkOptions(name=name, head=head, dim=32, dropout=0.1, **changes)
    net = build_network(options, 32).train()
    with torch.no_grad():
        for name_of, parameter in net.named_parameters():
            if name_of.endswith("bias"):
                parameter.add_(0.05 * torch.randn_like(parameter))
        for seed in range(3):
            net.features(torch.from_numpy(patches(64, seed + 10)))
    return net.eval()


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(new_run(tmp_path_factory.mktemp("runs"), run={"steps": 3}))


@pytest.fixture(scope="module")
def exported(run_dir: Path) -> Path:
    out = run_dir.parent / "models" / "tiny"
    export(run_dir, out)
    return out


def onnx_rows(data: bytes, given: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (rows,) = session.run(["descriptors"], {"patches": given})
    return np.asarray(rows)


def check_parity(net: DescriptorNet) -> None:
    data = to_onnx(net, SPEC)
    given = patches(200)
    expected, found = reference(net, given), onnx_rows(data, given)
    if net.head == "binary":
        with torch.no_grad():
            values = net.features(torch.from_numpy(given)).numpy()
        assert found.dtype == np.uint8
        assert found.shape == (200, 4)
        assert np.array_equal(
            np.unpackbits(found, axis=1)[np.abs(values) > 1e-5], values[np.abs(values) > 1e-5] > 0
        )
    else:
        assert float(np.abs(expected - found).max()) <= 1e-5
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    for part in (given[:1], given[3:10]):
        row = 0 if len(part) == 1 else 3
        np.testing.assert_allclose(onnx_rows(data, part), found[row : row + len(part)], atol=1e-6)
    assert onnx_rows(data, given[:0]).shape == (0, found.shape[1])
    model = onnx.load_model_from_string(data)
    kinds = {node.op_type for node in model.graph.node}
    assert "BatchNormalization" not in kinds
    assert "Dropout" not in kinds
    assert len(model.graph.node) < 130
    assert b"site-packages" not in data
    properties = {p.key: p.value for p in model.metadata_props}
    assert PatchSpec(**json.loads(properties["patch_spec"])) == SPEC


@pytest.mark.parametrize("head", ["unit", "binary"])
def test_parity_of_a_compact_network(head: Head) -> None:
    check_parity(trained_net("compact48", head))


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("head", ["unit", "binary", "linear"])
def test_parity_of_every_network_and_head(name: str, head: Head) -> None:
    check_parity(trained_net(name, head, width=0.5))


def test_folding_changes_nothing() -> None:
    net = trained_net("l2net", width=0.5)
    given = torch.from_numpy(patches(20))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    flat = folded(net)
    with torch.no_grad():
        torch.testing.assert_close(flat.features(given), net.features(given), rtol=1e-4, atol=1e-4)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in flat.modules())
    for key, value in net.state_dict().items():
        torch.testing.assert_close(value, before[key])


def test_export_writes_a_model_that_loads(exported: Path, run_dir: Path) -> None:
    assert sorted(p.name for p in exported.iterdir()) == ["card.json", "golden.npz", "model.onnx"]
    card = read_card(exported)
    assert (card.name, card.kind, card.dim, card.patch) == ("tiny", "float", 16, SPEC)
    assert card.training_data == ("synthetic:1:60",)
    assert card.recipe["loss"]["name"] == "hardnet"
    assert "synthetic-2-40" in card.metrics["validation_fpr95"]
    assert "/" not in json.dumps(card.recipe["data"])
    served = load_descriptor(str(exported))
    assert isinstance(served, OnnxDescriptor)
    trained = Trained.load(run_dir)
    assert compare(trained, served).difference <= 1e-5
    given = patches(5)
    np.testing.assert_allclose(
        served.describe_patches(given), reference(trained.net, given), atol=1e-5
    )


def test_export_refuses_what_is_there_and_bad_names(exported: Path, run_dir: Path) -> None:
    with pytest.raises(ExportRefused, match="already exists"):
        export(run_dir, exported)
    with pytest.raises(ExportRefused, match="not a legal model name"):
        export(run_dir, exported.parent / "Not A Name")


def test_export_refuses_a_file_that_disagrees(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained.load(run_dir)
    other = Trained.load(run_dir)
    with torch.no_grad():
        next(iter(other.net.parameters())).add_(1e-5)
    data = to_onnx(other.net, other.spec)
    # The golden check of loading lets 1e-3 pass; the comparison must not.
    with pytest.raises(ExportRefused, match="differs from the network by"):
        write_model(trained, data, tmp_path / "wrong")
    assert list(tmp_path.iterdir()) == []


def test_export_needs_samples(tmp_path: Path) -> None:
    run = train(new_run(tmp_path, run={"steps": 1}))
    for damaged in (b"junk", b"", b"PK\x03\x04junk"):
        (run / "samples.npy").write_bytes(damaged)
        with pytest.raises(ExportRefused, match=r"samples\.npy"):
            export(run, tmp_path / "m")


def test_quantise_keeps_the_contract() -> None:
    net = trained_net("patchify48", width=0.5)
    data = quantise(to_onnx(net, SPEC), patches(128))
    found = onnx_rows(data, patches(50))
    cosine = (found * reference(net, patches(50))).sum(1)
    assert float(np.median(cosine)) > 0.99


def test_validation_uses_hamming_for_bits() -> None:
    bits = np.array([[0b1010_0000], [0b0000_0000], [0b1010_0001], [0b1111_1111]], np.uint8)
    pairs = ValidationSet(
        "x",
        np.zeros((4, 1, 32, 32), np.uint8),
        left=np.array([0, 1]),
        right=np.array([2, 3]),
        is_match=np.array([True, False]),
    )
    assert pairs.distances(lambda _: bits).tolist() == [1, 8]
