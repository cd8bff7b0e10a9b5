"""A float16 model beside the float32 one, for devices that compute float16 faster.

Convolutions and the last layer are converted. Normalisation before them and unit length after
them stay in float32: a sum over the squares of a patch overflows float16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from matchserve.models.card import CARD_FILE, MODEL_FILE, ModelCard, write_card
from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.pattern import generate_pair
from matchserve.types import PatchSpec, UInt8
from matchserve.vision.decode import from_array
from matchserve.vision.keypoints import DetectOptions, detect
from matchserve.vision.patches import crop
from training.errors import ExportRefused
from training.export.cards import derived_card
from training.export.export import (
    GOLDEN_PATCHES,
    new_model_directory,
    write_graph_and_golden,
)
from training.export.parity import PARITY_PATCHES, Parity

TOLERANCE = 2e-3
# The golden descriptors are those of the float32 model. A device sums in another order than the
# CPU, on which TOLERANCE is checked, so it is allowed twice as much.
GOLDEN_TOLERANCE = 2 * TOLERANCE
_LAYERS = {"Conv", "Gemm"}
_BETWEEN = _LAYERS | {"Relu", "Reshape"}
_NOTE = "float16 convolutions, for devices; the golden descriptors and the calibration are those of"


@dataclass(frozen=True, slots=True)
class HalfExport:
    """The card of a float16 model and how far it is from the float32 one."""

    card: ModelCard
    parity: Parity


def export_fp16(source: Path, out: Path) -> HalfExport:
    """Write the float16 model directory `out` from the model directory `source`.

    Raises:
        ModelError: `source` cannot be loaded.
        ExportRefused: `source` is binary, `out` exists, or a descriptor differs too much.
    """
    if not (source / CARD_FILE).is_file():
        raise ExportRefused(f"{source}: --fp16 converts a model directory; export the run first")
    exact = OnnxDescriptor(source, provider="cpu")
    if exact.card.kind == "binary":
        raise ExportRefused("bits are exact or wrong: a binary model is not converted to float16")
    patches = generated_patches(exact.card.patch)
    data = to_half((source / MODEL_FILE).read_bytes())
    with new_model_directory(out) as temporary:
        card = _write_files(exact, patches, data, temporary, name=out.name)
        half = OnnxDescriptor(temporary, provider="cpu")
        parity = compare(exact, half, patches)
    return HalfExport(card, parity)


def to_half(data: bytes) -> bytes:
    """Convert the layers of an ONNX file, first convolution to last layer, to float16.

    Raises:
        ExportRefused: there are none, or other operations between them.
    """
    model = onnx.load_model_from_string(data)
    graph = model.graph
    places = [i for i, node in enumerate(graph.node) if node.op_type in _LAYERS]
    if not places:
        raise ExportRefused("the graph has no float32 convolutions to convert")
    before, inside = graph.node[: places[0]], graph.node[places[0] : places[-1] + 1]
    if others := {node.op_type for node in inside} - _BETWEEN:
        raise ExportRefused(f"the graph has {', '.join(sorted(others))} between its layers")
    after = graph.node[places[-1] + 1 :]
    _convert_weights(graph, {name for node in inside for name in node.input})
    inputs = {name for node in before for name in node.output}
    entry = _cast_inputs(inside, inputs, TensorProto.FLOAT16)
    leave = _cast_inputs(after, {inside[-1].output[0]}, TensorProto.FLOAT)
    nodes = [*before, *entry, *inside, *leave, *after]
    graph.ClearField("node")
    graph.node.extend(nodes)
    onnx.checker.check_model(model, full_check=True)
    converted: bytes = model.SerializeToString(deterministic=True)
    return converted


def _convert_weights(graph: Any, used: set[str]) -> None:
    """Convert the float32 tensors of the graph among `used`; shapes and indices stay."""
    for tensor in graph.initializer:
        if tensor.name in used and tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _cast_inputs(nodes: Sequence[Any], names: set[str], target: int) -> list[Any]:
    """Make `nodes` read casts of the tensors `names`; return the nodes that cast."""
    casts: dict[str, Any] = {}
    for node in nodes:
        for i, name in enumerate(node.input):
            if name in names:
                cast = helper.make_node("Cast", [name], [f"{name}_cast"], to=target)
                node.input[i] = casts.setdefault(name, cast).output[0]
    return list(casts.values())


def generated_patches(spec: PatchSpec) -> UInt8:
    """Cut a thousand patches from a generated image."""
    pattern, _, _ = generate_pair((1024, 768), seed=0)
    image = from_array(pattern)
    keypoints = detect(image, DetectOptions(max_keypoints=PARITY_PATCHES))
    return crop(image, keypoints, spec)


def compare(exact: OnnxDescriptor, half: OnnxDescriptor, patches: UInt8) -> Parity:
    """Compare the two models on the CPU.

    Raises:
        ExportRefused: a descriptor differs by more than 2e-3 in any of its values.
    """
    difference = np.abs(exact.describe_patches(patches) - half.describe_patches(patches))
    parity = Parity(len(patches), float(difference.max()), 0)
    if not parity.difference <= TOLERANCE:
        raise ExportRefused(
            f"float16 descriptors differ by {parity.difference:.2g} from the float32 ones on "
            f"{parity.patches} patches; {TOLERANCE:g} is allowed"
        )
    return parity


def _write_files(
    exact: OnnxDescriptor, patches: UInt8, data: bytes, directory: Path, *, name: str
) -> ModelCard:
    golden = patches[:GOLDEN_PATCHES]
    npz = write_graph_and_golden(directory, data, golden, exact.describe_patches(golden))
    card = derived_card(
        exact.card,
        name,
        graph=data,
        golden=npz,
        golden_tolerance=GOLDEN_TOLERANCE,
        notes=f"{_NOTE} {exact.card.name!r}, whose descriptors it gives within {TOLERANCE}.",
    )
    write_card(card, directory)
    return card
