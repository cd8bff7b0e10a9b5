"""Export a run as a model directory that matchserve serves, or refuse.

A model directory gets its name only after the exported file, loaded in the same way as the service
loads it, has given the same descriptors as the trained network.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.files import WholeDirectory
from matchserve.models.card import GOLDEN_FILE, MODEL_FILE, ModelCard, is_model_name, write_card
from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.types import UInt8
from training.errors import ExportRefused
from training.export.cards import CardText, make_card
from training.export.graph import to_onnx
from training.export.parity import Parity, compare
from training.export.trained import Trained

GOLDEN_PATCHES = 32


def export(
    run_dir: Path, out: Path, text: CardText | None = None, *, domain_sizes: Sequence[float] = ()
) -> tuple[ModelCard, Parity]:
    """Write the model directory `out` from a run.

    For each of `domain_sizes` the model also describes a patch that many times as wide as the
    trained one around each keypoint, and averages the descriptors.

    Raises:
        ExportRefused: `out` exists or is not a legal model name, a domain size is not possible,
            or the file disagrees with the network.
    """
    trained = Trained.load(run_dir)
    if domain_sizes:
        trained = trained.pooled(domain_sizes)
    graph = to_onnx(trained.net, trained.spec, trained.sides)
    return write_model(trained, graph, out, text)


def write_model(
    trained: Trained, graph: bytes, out: Path, text: CardText | None = None
) -> tuple[ModelCard, Parity]:
    """Write the ONNX file `graph` of a trained network as the model directory `out`.

    Raises:
        ExportRefused: `out` exists or is not a legal model name, or the file disagrees with the
            network.
    """
    golden = trained.describe(trained.samples[:GOLDEN_PATCHES])
    with new_model_directory(out) as directory:
        card = fill_directory(trained, graph, directory, name=out.name, golden=golden, text=text)
        parity = compare(trained, OnnxDescriptor(directory, provider="cpu"))
    return card, parity


def new_model_directory(out: Path) -> WholeDirectory:
    """Start the model directory `out`; it gets its name when the `with` block ends.

    Raises:
        ExportRefused: `out` exists or is not a legal model name.
    """
    if not is_model_name(out.name):
        raise ExportRefused(
            f"{out.name!r} is not a legal model name: use lower-case letters, digits, dots, dashes"
        )
    if out.exists():
        raise ExportRefused(f"{out}: already exists; remove it first")
    return WholeDirectory(out)


def fill_directory(
    trained: Trained,
    graph: bytes,
    directory: Path,
    *,
    name: str,
    golden: NDArray[Any],
    text: CardText | None = None,
) -> ModelCard:
    """Write the graph, the golden patches with their descriptors, and the card."""
    npz = write_graph_and_golden(directory, graph, trained.samples[:GOLDEN_PATCHES], golden)
    card = make_card(trained, name, text or CardText(), graph=graph, golden=npz)
    write_card(card, directory)
    return card


def write_graph_and_golden(
    directory: Path, graph: bytes, patches: UInt8, descriptors: NDArray[Any]
) -> bytes:
    """Write the graph and the golden patches with their descriptors; return the golden file."""
    (directory / MODEL_FILE).write_bytes(graph)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, patches=patches, descriptors=descriptors)
    (directory / GOLDEN_FILE).write_bytes(buffer.getvalue())
    return buffer.getvalue()
