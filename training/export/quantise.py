"""An int8 model beside the float one, written only if it loses little.

Convolutions are quantised statically (QDQ, unsigned activations, signed weights per channel,
`reduce_range` so that AVX2 kernels do not saturate), calibrated on training patches; the first one
stays in float, where its single input channel is faster and more exact. A quantised
network can fail completely without any error, so the file is gated on what it does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from matchserve.models.card import ModelCard
from matchserve.models.onnx_model import INPUT, OUTPUT, OnnxDescriptor
from matchserve.types import UInt8
from training.errors import ExportRefused
from training.export.export import (
    GOLDEN_PATCHES,
    CardText,
    Trained,
    fill_directory,
    model_directory,
    quiet,
    reference,
    to_onnx,
)
from training.runs.validation import ValidationSet

CALIBRATION_PATCHES = 512
_BLOCK = 64
_NOTE = "int8 convolutions; the golden descriptors are this file's own."


@dataclass(frozen=True, slots=True)
class Gate:
    """What an int8 model may lose: FPR95 in points of a hundred, and the least mean cosine."""

    fpr95_points: float = 0.5
    cosine: float = 0.99


@dataclass(frozen=True, slots=True)
class Loss:
    """What it did lose: mean cosine to the float network, and FPR95 before and after by store."""

    cosine: float
    fpr95: dict[str, tuple[float, float]]


def export_int8(
    run_dir: Path,
    out: Path,
    text: CardText | None = None,
    *,
    validation: Sequence[ValidationSet],
    gate: Gate | None = None,
) -> tuple[ModelCard, Loss]:
    """Write the int8 model directory `out` from a run.

    Raises:
        ExportRefused: it loses more than `gate` allows, or the head is binary.
    """
    trained = Trained.load(run_dir)
    if trained.net.head == "binary":
        raise ExportRefused("bits are exact or wrong: a binary model is not quantised")
    text = text or CardText()
    data = quantise(to_onnx(trained.net, trained.spec), trained.samples[:CALIBRATION_PATCHES])
    with model_directory(out) as temporary:
        card = fill_directory(
            trained,
            data,
            temporary,
            name=out.name,
            golden=_run(data, trained.samples[:GOLDEN_PATCHES]),
            text=replace(text, notes=f"{_NOTE} {text.notes}".strip()),
        )
        loss = measure(trained, OnnxDescriptor(temporary, provider="cpu"), validation)
        check(loss, gate or Gate())
    return card, loss


class _Patches:
    """Blocks of patches, as the calibration of ONNX Runtime reads them."""

    def __init__(self, patches: UInt8) -> None:
        self._blocks: Iterator[UInt8] = iter(np.array_split(patches, len(patches) // _BLOCK or 1))

    def get_next(self) -> dict[str, UInt8] | None:
        """Return the next block, None after the last."""
        block = next(self._blocks, None)
        return None if block is None else {INPUT: block}


def quantise(data: bytes, patches: UInt8) -> bytes:
    """Return the int8 version of the ONNX file `data`, calibrated on `patches`."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    model = onnx.load_model_from_string(data)
    first = next((n.name for n in model.graph.node if n.op_type == "Conv"), "")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "int8.onnx"
        with quiet():
            quantize_static(
                model,
                str(target),
                _Patches(patches),
                quant_format=QuantFormat.QDQ,
                # Relu: the range of unsigned activations does its work, and the node goes.
                op_types_to_quantize=["Conv", "Gemm", "Relu"],
                nodes_to_exclude=[first],
                per_channel=True,
                reduce_range=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
        return target.read_bytes()


def measure(trained: Trained, served: OnnxDescriptor, validation: Sequence[ValidationSet]) -> Loss:
    """Compare the int8 file with the network it was made from."""
    patches = trained.samples
    expected, found = reference(trained.net, patches), served.describe_patches(patches)
    rates = {
        s.name: (s.fpr95(lambda x: reference(trained.net, x)), s.fpr95(served.describe_patches))
        for s in validation
    }
    return Loss(float((expected * found).sum(1).mean()), rates)


def check(loss: Loss, gate: Gate) -> None:
    """Raise if `loss` exceeds `gate`.

    Raises:
        ExportRefused: it does.
    """
    if not loss.cosine >= gate.cosine:
        raise ExportRefused(
            f"int8 descriptors have a mean cosine of {loss.cosine:.5f} to the float ones; "
            f"{gate.cosine} is wanted"
        )
    for name, (before, after) in loss.fpr95.items():
        if 100 * (after - before) > gate.fpr95_points:
            raise ExportRefused(
                f"int8 raises FPR95 on {name} from {100 * before:.2f} to {100 * after:.2f} %; "
                f"{gate.fpr95_points} points are allowed"
            )


def _run(data: bytes, patches: UInt8) -> NDArray[Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    rows: NDArray[Any] = session.run([OUTPUT], {INPUT: patches})[0]
    return rows
