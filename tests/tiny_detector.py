"""A small real detector: scores are squared differences of two Gaussians, as a logarithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from matchserve.models.card import (
    DETECTOR_FILE,
    DETECTOR_GOLDEN_FILE,
    DetectorCard,
    read_card,
    write_card,
)
from matchserve.models.learned_detector import INPUT, OUTPUT
from matchserve.models.model_files import sha256_hex
from matchserve.models.providers import start_session
from matchserve.types import Float32

SIDE = 15


def blob_kernel() -> Float32:
    """The difference of two Gaussians, (15, 15)."""
    x = np.arange(SIDE) - SIDE // 2
    squares = x[:, None] ** 2 + x**2
    narrow, wide = (np.exp(-squares / (2 * s**2)) for s in (1.6, 2.4))
    return np.asarray(narrow / narrow.sum() - wide / wide.sum(), np.float32)


def detector_graph() -> onnx.ModelProto:
    """The logarithm of 1 plus the square of the difference of two Gaussians."""
    kernel = numpy_helper.from_array(blob_kernel()[None, None], "kernel")
    one = numpy_helper.from_array(np.array(1.0, np.float32), "one")
    pad = SIDE // 2
    nodes = [
        helper.make_node("Conv", [INPUT, "kernel"], ["blobs"], pads=[pad] * 4),
        helper.make_node("Mul", ["blobs", "blobs"], ["squares"]),
        helper.make_node("Add", ["squares", "one"], ["more"]),
        helper.make_node("Log", ["more"], [OUTPUT]),
    ]
    shape: list[str | int | None] = [1, 1, "H", "W"]
    source = helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, shape)
    target = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "blobs", [source], [target], [kernel, one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def add_detector(
    directory: Path,
    *,
    is_default: bool = True,
    graph: onnx.ModelProto | None = None,
    golden_shift: float = 0.0,
    **fields: Any,
) -> Path:
    """Give a model directory a detector; keyword arguments make it lie about itself."""
    network = (graph or detector_graph()).SerializeToString()
    (directory / DETECTOR_FILE).write_bytes(network)
    level = np.random.default_rng(0).integers(0, 256, (40, 50), np.uint8)
    session = start_session(detector_graph().SerializeToString(), "cpu", 1)
    scores = session.run([OUTPUT], {INPUT: level[None, None].astype(np.float32)})[0][0, 0]
    golden = directory / DETECTOR_GOLDEN_FILE
    np.savez(golden, level=level, scores=scores + np.float32(golden_shift))
    known: dict[str, Any] = {
        "sha256": sha256_hex(network),
        "golden_sha256": sha256_hex(golden.read_bytes()),
        "per_octave": 2,
        "sigma": 2.0,
        "is_default": is_default,
        "method": "difference of Gaussians",
    }
    card = read_card(directory)
    detector = DetectorCard(**{**known, **fields})
    write_card(card.model_copy(update={"detector": detector}), directory)
    return directory
