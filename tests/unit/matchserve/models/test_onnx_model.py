"""A model loads only if it is what its card says, and runs where it was told to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from matchserve.errors import (
    InferenceFailed,
    InvalidParameter,
    ModelCorrupt,
    ModelError,
    ModelMismatch,
    ModelMissing,
)
from matchserve.models import model_files, onnx_model
from matchserve.models.card import CARD_FILE, GOLDEN_FILE, MODEL_FILE, ModelCard
from matchserve.models.model_files import sha256_hex
from matchserve.models.onnx_guard import check_model
from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.models.providers import ProviderChoice, start_session
from matchserve.types import UInt8
from matchserve.vision.decode import from_array
from matchserve.vision.keypoints import detect
from matchserve.vision.patches import crop
from tests.tiny_models import tiny_graph, tiny_reference, write_tiny_model


def patches(count: int, seed: int = 3) -> UInt8:
    return np.random.default_rng(seed).integers(0, 256, (count, 1, 32, 32), np.uint8)


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 1000])
def test_any_batch_composition_gives_the_same_rows(tiny_model: Path, count: int) -> None:
    descriptor = OnnxDescriptor(tiny_model)
    everything = patches(1000)
    rows = descriptor.describe_patches(everything[:count])
    assert rows.shape == (count, 16)
    assert rows.dtype == np.float32
    whole = descriptor.describe_patches(everything)
    np.testing.assert_allclose(rows, whole[:count], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 1000])
def test_packed_bits_for_any_batch(tiny_binary_model: Path, count: int) -> None:
    descriptor = OnnxDescriptor(tiny_binary_model)
    rows = descriptor.describe_patches(patches(1000)[:count])
    assert rows.shape == (count, 2)
    assert rows.dtype == np.uint8
    np.testing.assert_array_equal(rows, tiny_reference(patches(1000), "binary")[:count])


def test_describe_is_the_shared_crop_then_the_graph(tiny_model: Path, pattern: UInt8) -> None:
    descriptor = OnnxDescriptor(tiny_model)
    image = from_array(pattern)
    found = detect(image)
    expected = tiny_reference(crop(image, found, descriptor.card.patch), "float")
    np.testing.assert_allclose(descriptor.describe(image, found), expected, atol=1e-6)


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((3, 32, 32), np.uint8),
        np.zeros((3, 1, 31, 32), np.uint8),
        np.zeros((3, 1, 32, 32), np.float32),
        np.zeros((3, 3, 32, 32), np.uint8),
    ],
)
def test_other_patches_are_refused(tiny_model: Path, bad: Any) -> None:
    with pytest.raises(InvalidParameter, match="patches are"):
        OnnxDescriptor(tiny_model).describe_patches(bad)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1
    path.write_bytes(data)


def make_a_directory(folder: Path) -> None:
    (folder / MODEL_FILE).unlink()
    (folder / MODEL_FILE).mkdir()


DAMAGE: dict[str, tuple[Callable[[Path], object], type[ModelError]]] = {
    "no card": (lambda d: (d / CARD_FILE).unlink(), ModelMissing),
    "no model": (lambda d: (d / MODEL_FILE).unlink(), ModelMissing),
    "no golden": (lambda d: (d / GOLDEN_FILE).unlink(), ModelMissing),
    "model is a directory": (
        make_a_directory,
        ModelMissing,
    ),
    "empty model": (lambda d: (d / MODEL_FILE).write_bytes(b""), ModelCorrupt),
    "one bit of the model": (lambda d: flip(d / MODEL_FILE, 100), ModelCorrupt),
    "one bit of the golden": (lambda d: flip(d / GOLDEN_FILE, 100), ModelCorrupt),
    "card is not JSON": (lambda d: (d / CARD_FILE).write_text("{"), ModelCorrupt),
    "card with an unknown key": (
        lambda d: (d / CARD_FILE).write_text(
            (d / CARD_FILE).read_text().replace('"name"', '"nmae"')
        ),
        ModelCorrupt,
    ),
    "card with another patch version": (
        lambda d: (d / CARD_FILE).write_text(
            (d / CARD_FILE)
            .read_text()
            .replace('"antialias": true,\n    "version": 1', '"antialias": true, "version": 99')
        ),
        ModelCorrupt,
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_model_does_not_load(tiny_model: Path, name: str) -> None:
    damage, expected = DAMAGE[name]
    damage(tiny_model)
    with pytest.raises(expected) as caught:
        OnnxDescriptor(tiny_model)
    assert "tiny" in caught.value.message
    assert str(tiny_model.parent) not in caught.value.message


@pytest.mark.parametrize("sixteenth", range(16))
def test_a_truncated_model_does_not_load(tiny_model: Path, sixteenth: int) -> None:
    path = tiny_model / MODEL_FILE
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * sixteenth // 16])
    with pytest.raises(ModelCorrupt, match="checksum"):
        OnnxDescriptor(tiny_model)


def renamed(old: str, new: str) -> onnx.ModelProto:
    model = tiny_graph()
    text = model.SerializeToString().replace(old.encode(), new.encode())
    return onnx.load_from_string(text)


def fixed_batch() -> onnx.ModelProto:
    model = tiny_graph()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    return model


def unknown_operator() -> onnx.ModelProto:
    model = tiny_graph()
    model.graph.node[1].op_type = "NoSuchOperator"
    return model


def without_normalisation() -> onnx.ModelProto:
    model = tiny_graph()
    (node,) = [n for n in model.graph.node if n.op_type == "LpNormalization"]
    node.op_type = "Identity"
    del node.attribute[:]
    return model


LIES: dict[str, tuple[dict[str, Any], type[ModelError]]] = {
    "dim": ({"dim": 32}, ModelMismatch),
    "kind": ({"kind": "binary", "dim": 128}, ModelMismatch),
    "input name": ({"graph": renamed("patches", "patchez")}, ModelMismatch),
    "output name": ({"graph": renamed("descriptors", "descriptorz")}, ModelMismatch),
    "fixed batch": ({"graph": fixed_batch()}, ModelMismatch),
    "patch size": ({"graph": tiny_graph(size=16)}, ModelMismatch),
    "golden": ({"golden_shift": 0.01}, ModelMismatch),
    "length": ({"graph": without_normalisation()}, ModelMismatch),
    "unknown operator": ({"graph": unknown_operator()}, ModelCorrupt),
}


@pytest.mark.parametrize("name", LIES)
def test_a_card_that_lies_does_not_load(tmp_path: Path, name: str) -> None:
    fields, expected = LIES[name]
    kind = fields.pop("kind", None)
    directory = write_tiny_model(tmp_path / "liar", **fields)
    if kind is not None:
        card = (directory / CARD_FILE).read_text().replace('"float"', f'"{kind}"')
        (directory / CARD_FILE).write_text(card)
    with pytest.raises(expected):
        OnnxDescriptor(directory)


def with_external_data(where: str) -> onnx.ModelProto:
    model = tiny_graph()
    tensor = model.graph.initializer[0]
    if where == "attribute":
        tensor = (
            model.graph.node.add(op_type="Constant", output=["unused"])
            .attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
            .t
        )
        tensor.CopyFrom(numpy_helper.from_array(np.zeros(3, np.float32)))
    elif where == "subgraph":
        inner = helper.make_graph(
            [], "inner", [], [], [numpy_helper.from_array(np.zeros(3, np.float32), "w")]
        )
        node = helper.make_node("If", ["c"], ["unused"], then_branch=inner, else_branch=inner)
        model.graph.node.append(node)
        tensor = model.graph.node[-1].attribute[0].g.initializer[0]
    elif where == "function":
        attribute = model.functions.add(name="f", domain="local").attribute_proto.add(name="a")
        attribute.type = onnx.AttributeProto.TENSOR
        tensor = attribute.t
        tensor.CopyFrom(numpy_helper.from_array(np.zeros(3, np.float32)))
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../secret"
    return model


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        (
            {"patches": np.zeros((0, 1, 32, 32), np.uint8), "descriptors": np.zeros((0, 16))},
            ModelCorrupt,
        ),
        (
            {"patches": np.zeros((2, 1, 32, 32), np.float32), "descriptors": np.zeros((2, 16))},
            ModelCorrupt,
        ),
        (
            {"patches": np.zeros((2, 32, 32), np.uint8), "descriptors": np.zeros((2, 16))},
            ModelCorrupt,
        ),
        ({"patches": patches(2), "descriptors": np.zeros((3, 16), np.float32)}, ModelMismatch),
        ({"patches": patches(2)}, ModelCorrupt),
        (None, ModelCorrupt),
    ],
)
def test_a_golden_file_that_proves_nothing_is_a_model_error(
    tiny_model: Path, arrays: dict[str, Any] | None, expected: type[ModelError]
) -> None:
    golden = tiny_model / GOLDEN_FILE
    if arrays is None:
        golden.write_bytes(b"")
    else:
        np.savez(golden, **arrays)
    card = (tiny_model / CARD_FILE).read_text()
    old = ModelCard.model_validate_json(card).golden_sha256 or ""
    (tiny_model / CARD_FILE).write_text(card.replace(old, sha256_hex(golden.read_bytes())))
    with pytest.raises(expected):
        OnnxDescriptor(tiny_model)


@pytest.mark.parametrize("where", ["initializer", "attribute", "subgraph", "function"])
def test_external_data_is_refused(tmp_path: Path, where: str) -> None:
    graph = with_external_data(where)
    with pytest.raises(ModelCorrupt, match=r"external|not allowed|functions|inside of nodes"):
        check_model(graph.SerializeToString())
    directory = write_tiny_model(tmp_path / "outside", graph=graph)
    with pytest.raises(ModelCorrupt, match=r"external|not allowed|functions|inside of nodes"):
        OnnxDescriptor(directory)


def test_the_guard_passes_honest_models_and_refuses_noise() -> None:
    check_model(tiny_graph("binary").SerializeToString())
    with pytest.raises(ModelCorrupt, match="valid"):
        check_model(b"\xff" * 40)
    rng = np.random.default_rng(0)
    for length in range(1, 300, 7):
        with pytest.raises(ModelCorrupt):
            check_model(b"\x3a\xff\x7f" + rng.bytes(length))


class FakeSession:
    """A session that answers what a test wants."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer = answer

    def run(self, _: list[str], inputs: dict[str, Any]) -> list[Any]:
        return [self.answer(inputs["patches"])]


def raising(_: Any) -> Any:
    raise RuntimeError("device lost")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (raising, InferenceFailed),
        (lambda p: np.full((len(p), 16), np.nan, np.float32), InferenceFailed),
        (lambda p: np.zeros((len(p), 15), np.float32), ModelMismatch),
    ],
)
def test_failures_while_running_are_typed(
    tiny_model: Path, answer: Callable[[Any], Any], expected: type[ModelError]
) -> None:
    descriptor = OnnxDescriptor(tiny_model)
    descriptor._session = FakeSession(answer)
    with pytest.raises(expected):
        descriptor.describe_patches(patches(3))


def test_a_model_that_is_too_big_is_not_read(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "MAX_MODEL_BYTES", 10)
    with pytest.raises(ModelCorrupt, match="larger"):
        OnnxDescriptor(tiny_model)


def test_threads_are_given_to_the_session(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    real = start_session

    def record(model: bytes, choice: ProviderChoice, threads: int, placement: Any) -> Any:
        seen.append(threads)
        return real(model, choice, threads, placement)

    monkeypatch.setattr(model_files, "start_session", record)
    monkeypatch.setattr(onnx_model, "available_cpus", lambda: 3)
    OnnxDescriptor(tiny_model)
    OnnxDescriptor(tiny_model, threads=1)
    assert seen == [3, 1]


def test_golden_bits_may_differ_in_one_percent(tiny_binary_model: Path) -> None:
    descriptor = OnnxDescriptor(tiny_binary_model)
    rows = descriptor.describe_patches(patches(100))
    buffer = tiny_binary_model / "one.npz"
    rows[0, 0] ^= 1
    np.savez(buffer, patches=patches(100), descriptors=rows)
    descriptor._check_golden(buffer.read_bytes())
    np.savez(buffer, patches=patches(100), descriptors=~rows)
    with pytest.raises(ModelMismatch, match="golden"):
        descriptor._check_golden(buffer.read_bytes())
