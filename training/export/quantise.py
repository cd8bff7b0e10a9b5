"""Export an int8 model, if it is almost as good as the float model.

Convolutions are quantised statically (QDQ, unsigned activations, signed weights per channel,
`reduce_range` so that AVX2 kernels do not saturate) and calibrated on training patches. The first
convolution stays in float: with a single input channel that is faster and more exact. Quantisation
can ruin a network without any error message, so the descriptors of the file are measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from matchserve.archives import read_npz
from matchserve.models.card import GOLDEN_FILE, MODEL_FILE, ModelCard, write_card
from matchserve.models.execution import INPUT, OUTPUT
from matchserve.models.model_files import MAX_GOLDEN_BYTES
from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.types import UInt8
from training.data.store.reader import PatchStore
from training.errors import DataError, ExportRefused
from training.export.cards import CardText, derived_card, make_card
from training.export.export import (
    GOLDEN_PATCHES,
    new_model_directory,
    write_graph_and_golden,
)
from training.export.graph import quiet, to_onnx
from training.export.trained import Trained
from training.runs.run import draw_samples
from training.runs.validation import ValidationSet

CALIBRATION_PATCHES = 512
_BLOCK = 64
# Rounding turns a difference in the last digit of a float into a whole level of an int8 value. In
# `accurate-int8`, descriptors computed without graph optimisation differ by 1.8e-3.
GOLDEN_TOLERANCE = 5e-3
_NOTE = "int8 convolutions; the golden descriptors were computed with this file."

# Makes the card of the model `name` with the files `graph` (ONNX) and `golden` (npz).
CardMaker = Callable[[str, bytes, bytes], ModelCard]


@dataclass(frozen=True, slots=True)
class Gate:
    """What an int8 model may lose: FPR95 in percentage points; and its least mean cosine."""

    fpr95_points: float = 0.5
    cosine: float = 0.99


@dataclass(frozen=True, slots=True)
class Loss:
    """What it lost: mean cosine to the float model, and FPR95 (float, int8) by store."""

    cosine: float
    fpr95: dict[str, tuple[float, float]]


@dataclass(frozen=True, slots=True, eq=False)
class FloatModel:
    """A float model to quantise, from a run or a model directory.

    The first `CALIBRATION_PATCHES` of `samples` calibrate the quantisation; `golden` are the
    patches for `golden.npz`; `describe` gives the float descriptors of patches.
    """

    graph: bytes
    samples: UInt8
    golden: UInt8
    describe: Callable[[UInt8], NDArray[Any]]
    make_card: CardMaker

    @classmethod
    def of_run(cls, run_dir: Path, text: CardText | None = None) -> FloatModel:
        """Read a run; the patches are the training patches that it stored.

        Raises:
            RecipeError, CheckpointError: the run cannot be read.
            ExportRefused: its head is binary, or it has no stored patches.
        """
        trained = Trained.load(run_dir)
        _refuse_binary(trained.net.head)
        text = text or CardText()
        text = replace(text, notes=f"{_NOTE} {text.notes}".strip())

        def card(name: str, graph: bytes, golden: bytes) -> ModelCard:
            return make_card(trained, name, text, graph=graph, golden=golden)

        graph = to_onnx(trained.net, trained.spec)
        samples = trained.samples
        return cls(graph, samples, samples[:GOLDEN_PATCHES], trained.describe, card)

    @classmethod
    def of_directory(
        cls, directory: Path, stores: Sequence[PatchStore], *, notes: str = "", purpose: str = ""
    ) -> FloatModel:
        """Read a model directory; the patches are drawn from `stores`.

        The golden patches stay those of the model. The card stays too, with other notes and, if
        given, another purpose, but without the calibration, which belongs to other descriptors.

        Raises:
            ModelError: the model cannot be loaded.
            DataError: there is no store, or its patches are cut differently.
            ExportRefused: the model is binary, or is not computed in float32.
        """
        exact = OnnxDescriptor(directory, provider="cpu")
        source = exact.card
        _refuse_binary(source.kind)
        graph = (directory / MODEL_FILE).read_bytes()
        _refuse_converted(graph, source.name)
        if not stores:
            raise DataError(
                f"{directory}: a model directory contains no training patches; name a patch store "
                "to calibrate on with --data"
            )
        refuse_other_spec(stores, source)
        remarks = f"{_NOTE} Made from the model {source.name!r}. {notes}".strip()

        def card(name: str, graph: bytes, golden: bytes) -> ModelCard:
            return derived_card(
                source,
                name,
                graph=graph,
                golden=golden,
                calibration=None,
                confidence=None,
                notes=remarks,
                purpose=purpose or source.purpose,
            )

        golden = read_npz((directory / GOLDEN_FILE).read_bytes(), MAX_GOLDEN_BYTES)["patches"]
        samples = draw_samples(stores, seed=0)
        return cls(graph, samples, golden, exact.describe_patches, card)


def refuse_other_spec(stores: Sequence[PatchStore], card: ModelCard) -> None:
    """Refuse stores whose patches are not cut as the model needs them.

    Raises:
        DataError: the message names the store and both crops.
    """
    for store in stores:
        if store.spec != card.patch:
            raise DataError(
                f"{store.path}: its patches are {store.spec}, but the model {card.name!r} needs "
                f"{card.patch}; make them with `data recrop`"
            )


def export_int8(
    model: FloatModel, out: Path, *, validation: Sequence[ValidationSet], gate: Gate | None = None
) -> tuple[ModelCard, Loss]:
    """Write the int8 model directory `out` from a float model.

    Raises:
        ExportRefused: `out` exists, or the model loses more than `gate` allows.
    """
    with new_model_directory(out) as directory:
        graph = quantise(model.graph, model.samples[:CALIBRATION_PATCHES])
        golden = write_graph_and_golden(directory, graph, model.golden, _run(graph, model.golden))
        made = model.make_card(out.name, graph, golden)
        card = made.model_copy(update={"golden_tolerance": GOLDEN_TOLERANCE})
        write_card(card, directory)
        loss = measure(model, OnnxDescriptor(directory, provider="cpu"), validation)
        check(loss, gate or Gate())
    return card, loss


def _refuse_binary(kind: str) -> None:
    if kind == "binary":
        raise ExportRefused("a binary model cannot be quantised: small errors would flip bits")


def _refuse_converted(data: bytes, name: str) -> None:
    """Refuse a graph without convolutions, or one whose weights are int8 or float16 already."""
    graph = onnx.load_model_from_string(data).graph
    exact = {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    weights = [node.input[1] for node in graph.node if node.op_type == "Conv"]
    if not weights or not exact.issuperset(weights):
        raise ExportRefused(f"the convolutions of {name!r} are not float32; quantise its source")


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


def measure(model: FloatModel, served: OnnxDescriptor, validation: Sequence[ValidationSet]) -> Loss:
    """Compare the int8 file with the float model it was made from."""
    expected, actual = model.describe(model.samples), served.describe_patches(model.samples)
    rates = {
        s.name: (s.fpr95(model.describe), s.fpr95(served.describe_patches)) for s in validation
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
