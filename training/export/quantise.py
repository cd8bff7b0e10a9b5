"""Export an int8 model, if it is almost as good as the float model.

Convolutions are quantised statically (QDQ, unsigned activations, signed weights per channel,
`reduce_range` so that AVX2 kernels do not saturate) and calibrated on training patches. The first
convolution stays in float: with a single input channel that is faster and more exact. Quantisation
can ruin a network without any error message, so the descriptors of the file are measured.
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
from matchserve.models.execution import INPUT, OUTPUT
from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.types import UInt8
from training.errors import ExportRefused
from training.export.cards import CardText
from training.export.export import GOLDEN_PATCHES, fill_directory, new_model_directory
from training.export.graph import quiet, to_onnx
from training.export.trained import Trained, reference
from training.runs.validation import ValidationSet

CALIBRATION_PATCHES = 512
_BLOCK = 64
_NOTE = "int8 convolutions; the golden descriptors were computed with this file."


@dataclass(frozen=True, slots=True)
class Gate:
    """What an int8 model may lose: FPR95 in percentage points; and its least mean cosine."""

    fpr95_points: float = 0.5
    cosine: float = 0.99


@dataclass(frozen=True, slots=True)
class Loss:
    """What it lost: mean cosine to the float network, and FPR95 (float, int8) by store."""

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
        ExportRefused: the model loses more than `gate` allows, or its head is binary.
    """
    trained = Trained.load(run_dir)
    if trained.net.head == "binary":
        raise ExportRefused("a binary model cannot be quantised: small errors would flip bits")
    text = text or CardText()
    graph = quantise(to_onnx(trained.net, trained.spec), trained.samples[:CALIBRATION_PATCHES])
    golden = _run(graph, trained.samples[:GOLDEN_PATCHES])
    text = replace(text, notes=f"{_NOTE} {text.notes}".strip())
    with new_model_directory(out) as directory:
        card = fill_directory(trained, graph, directory, name=out.name, golden=golden, text=text)
        loss = measure(trained, OnnxDescriptor(directory, provider="cpu"), validation)
        check(loss, gate or Gate())
    return card, loss


class _Patches:
    """Blocks of patches, with the interface of ONNX Runtime's calibration."""

    def __init__(self, patches: UInt8) -> None:
        self._blocks: Iterator[UInt8] = iter(np.array_split(patches, len(patches) // _BLOCK or 1))

    def get_next(self) -> dict[str, UInt8] | None:
        """Return the next batch of calibration patches, or None after the last."""
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
                # Unsigned activations cannot be negative, so quantised Relu nodes are removed.
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
    expected, actual = reference(trained.net, patches), served.describe_patches(patches)
    rates = {
        s.name: (s.fpr95(lambda x: reference(trained.net, x)), s.fpr95(served.describe_patches))
        for s in validation
    }
    return Loss(float((expected * actual).sum(1).mean()), rates)


def check(loss: Loss, gate: Gate) -> None:
    """Refuse a model that lost more than `gate` allows.

    Raises:
        ExportRefused: it lost more.
    """
    if not loss.cosine >= gate.cosine:
        raise ExportRefused(
            f"int8 descriptors have a mean cosine of {loss.cosine:.5f} to the float ones; "
            f"at least {gate.cosine} is required"
        )
    for name, (before, after) in loss.fpr95.items():
        if 100 * (after - before) > gate.fpr95_points:
            raise ExportRefused(
                f"int8 raises FPR95 on {name} from {100 * before:.2f} to {100 * after:.2f} %; "
                f"at most {gate.fpr95_points} percentage points are allowed"
            )


def _run(data: bytes, patches: UInt8) -> NDArray[Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    rows: NDArray[Any] = session.run([OUTPUT], {INPUT: patches})[0]
    return rows
