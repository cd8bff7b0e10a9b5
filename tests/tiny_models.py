"""Small real ONNX models: a strided convolution, flattened, unit length or packed bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from matchserve.models.card import GOLDEN_FILE, MODEL_FILE, ModelCard, write_card
from matchserve.models.execution import INPUT, OUTPUT
from matchserve.models.model_files import sha256_hex
from matchserve.models.providers import start_session
from matchserve.types import DescriptorKind, PatchSpec

SPEC = PatchSpec(size=32, magnification=12.0)


def tiny_graph(kind: DescriptorKind = "float", *, size: int = 32, seed: int = 0) -> onnx.ModelProto:
    """An 8x8 patchify convolution to one channel: 16 numbers a patch."""
    rng = np.random.default_rng(seed)
    kernel = rng.normal(size=(1, 1, size // 4, size // 4)).astype(np.float32)
    kernel -= kernel.mean()
    nodes = [
        helper.make_node("Cast", [INPUT], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Conv", ["real", "kernel"], ["map"], strides=[size // 4, size // 4]),
        helper.make_node("Flatten", ["map"], ["flat"], axis=1),
    ]
    constants = [numpy_helper.from_array(kernel, "kernel")]
    if kind == "float":
        nodes.append(helper.make_node("LpNormalization", ["flat"], [OUTPUT], axis=1, p=2))
        output = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["N", 16])
    else:
        constants += [
            numpy_helper.from_array(np.array(0.0, np.float32), "zero"),
            numpy_helper.from_array(np.array([0, 2, 8], np.int64), "bytes_shape"),
            numpy_helper.from_array(
                np.array([128, 64, 32, 16, 8, 4, 2, 1], np.float32), "bit_values"
            ),
            numpy_helper.from_array(np.array([2], np.int64), "last"),
        ]
        nodes += [
            helper.make_node("Greater", ["flat", "zero"], ["bits"]),
            helper.make_node("Cast", ["bits"], ["bits_real"], to=TensorProto.FLOAT),
            helper.make_node("Reshape", ["bits_real", "bytes_shape"], ["octets"]),
            helper.make_node("Mul", ["octets", "bit_values"], ["weighted"]),
            helper.make_node("ReduceSum", ["weighted", "last"], ["sums"], keepdims=0),
            helper.make_node("Cast", ["sums"], [OUTPUT], to=TensorProto.UINT8),
        ]
        output = helper.make_tensor_value_info(OUTPUT, TensorProto.UINT8, ["N", 2])
    source = helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["N", 1, size, size])
    graph = helper.make_graph(nodes, "tiny", [source], [output], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write_tiny_model(
    directory: Path,
    *,
    kind: DescriptorKind = "float",
    size: int = 32,
    graph: onnx.ModelProto | None = None,
    golden_shift: float = 0.0,
    **card_fields: Any,
) -> Path:
    """Write a model directory; keyword arguments make it lie about itself."""
    directory.mkdir(parents=True)
    model = (graph or tiny_graph(kind, size=size)).SerializeToString()
    (directory / MODEL_FILE).write_bytes(model)
    patches = np.random.default_rng(1).integers(0, 256, (5, 1, size, size), np.uint8)
    rows = tiny_reference(patches, kind)
    np.savez(
        directory / GOLDEN_FILE,
        patches=patches,
        descriptors=rows + np.array(golden_shift, rows.dtype),
    )
    fields: dict[str, Any] = {
        "name": directory.name,
        "version": "1",
        "kind": kind,
        "dim": 16,
        "patch": replace(SPEC, size=size),
        "sha256": sha256_hex(model),
        "golden_sha256": sha256_hex((directory / GOLDEN_FILE).read_bytes()),
        "licence": "Apache-2.0",
        "method": "random projection",
    }
    write_card(ModelCard(**{**fields, **card_fields}), directory)
    return directory


def tiny_reference(patches: np.ndarray, kind: DescriptorKind) -> np.ndarray:
    """What the tiny model gives, straight from ONNX Runtime."""
    session = start_session(tiny_graph(kind, size=patches.shape[-1]).SerializeToString(), "cpu", 1)
    (rows,) = session.run([OUTPUT], {INPUT: patches})
    return np.asarray(rows)
