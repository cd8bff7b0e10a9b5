"""The float16 model: close to the float32 one, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from matchserve.errors import ModelMismatch
from matchserve.models.card import read_card, write_card
from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.models.registry import shipped_models_dir
from training.errors import ExportRefused
from training.export import half
from training.export.half import TOLERANCE, compare, export_fp16, generated_patches, to_half


@pytest.fixture(scope="module")
def compact() -> OnnxDescriptor:
    return OnnxDescriptor(shipped_models_dir() / "compact", provider="cpu", threads=1)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "half"
    export_fp16(shipped_models_dir() / "compact", out)
    return out


def test_layers_are_float16_and_the_rest_is_not(converted: Path) -> None:
    graph = onnx.load(converted / "model.onnx").graph
    weights = {t.name: t.data_type for t in graph.initializer if t.name.startswith("trunk")}
    assert set(weights.values()) == {TensorProto.FLOAT16}
    casts = [node.attribute[0].i for node in graph.node if node.op_type == "Cast"]
    assert casts == [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.FLOAT]
    operations = [node.op_type for node in graph.node]
    assert operations.index("Sqrt") < operations.index("Conv")
    assert graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_descriptors_are_those_of_float32(converted: Path, compact: OnnxDescriptor) -> None:
    patches = generated_patches(compact.card.patch)
    rows = OnnxDescriptor(converted, provider="cpu", threads=1).describe_patches(patches)
    expected = compact.describe_patches(patches)
    difference = np.abs(rows - expected).max()
    assert 0 < difference <= TOLERANCE
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)


def test_the_card_says_what_the_file_is(converted: Path, compact: OnnxDescriptor) -> None:
    card = read_card(converted)
    assert card.name == "half"
    assert "float16" in card.notes
    assert card.metrics == {}
    assert card.calibration == compact.card.calibration
    assert card.golden_tolerance == 2 * TOLERANCE


def test_the_golden_tolerance_of_the_card_is_what_is_allowed(converted: Path) -> None:
    card = read_card(converted)
    write_card(card.model_copy(update={"golden_tolerance": 1e-6}), converted)
    try:
        with pytest.raises(ModelMismatch, match="golden"):
            OnnxDescriptor(converted, provider="cpu", threads=1)
    finally:
        write_card(card, converted)


def test_a_difference_is_refused(
    compact: OnnxDescriptor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    patches = generated_patches(compact.card.patch)[:64]
    other = OnnxDescriptor(shipped_models_dir() / "compact", provider="cpu", threads=1)
    rows = np.roll(compact.describe_patches(patches), 1, 0)
    monkeypatch.setattr(other, "describe_patches", lambda _: rows)
    with pytest.raises(ExportRefused, match=r"0\.002 is allowed"):
        compare(compact, other, patches)
    monkeypatch.setattr(half, "TOLERANCE", 1e-9)
    with pytest.raises(ExportRefused):
        export_fp16(shipped_models_dir() / "compact", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_what_cannot_be_converted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match="bits"):
        export_fp16(shipped_models_dir() / "binary", tmp_path / "x")
    with pytest.raises(ExportRefused, match="QuantizeLinear"):
        export_fp16(shipped_models_dir() / "compact-int8", tmp_path / "x")
    with pytest.raises(ExportRefused, match="export the run first"):
        export_fp16(tmp_path, tmp_path / "x")
    with pytest.raises(ExportRefused, match="no float32 convolutions"):
        to_half(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [])).SerializeToString())


def test_the_shipped_file_is_what_the_command_makes(converted: Path) -> None:
    shipped = shipped_models_dir() / "compact-fp16" / "model.onnx"
    assert (converted / "model.onnx").read_bytes() == shipped.read_bytes()
