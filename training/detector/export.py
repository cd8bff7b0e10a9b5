"""Export a trained network into a model directory: `detector.onnx`, `detector.npz`, the card."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import torch

from matchserve.files import write_whole
from matchserve.models.card import (
    DETECTOR_FILE,
    DETECTOR_GOLDEN_FILE,
    DetectorCard,
    read_card,
    write_card,
)
from matchserve.models.model_files import sha256_hex
from matchserve.models.onnx_guard import check_model
from matchserve.types import Float32, UInt8
from training.detector.loop import read_network, read_recipe
from training.detector.network import ScoreNetwork, folded
from training.errors import ExportRefused
from training.export.graph import OPSET, quiet, strip

INPUT, OUTPUT = "level", "scores"
TOLERANCE = 1e-4
"""Largest difference between a score of the exported file and that of the network."""
PER_OCTAVE, SIGMA = 2, 2.4
_GOLDEN_SHAPE = (128, 160)
_OTHER_SHAPE = (97, 131)
_LEAST_SIDE, _MOST_SIDE = 16, 1 << 15


def export(
    run_dir: Path, model_dir: Path, *, is_default: bool = False, sigma: float = SIGMA
) -> tuple[DetectorCard, float]:
    """Write the detector of a run into a model directory; return the largest difference too.

    Raises:
        RecipeError: the folder has no recipe.
        CheckpointError: the run is not finished, or its weights are damaged.
        ModelError: there is no model in `model_dir`.
        ExportRefused: the file disagrees with the network, or would be refused when it is served.
    """
    card = read_card(model_dir)
    net, entries = read_network(run_dir)
    graph = to_onnx(net)
    check_model(graph)
    difference = max(
        _difference(net, graph, texture(shape)) for shape in (_GOLDEN_SHAPE, _OTHER_SHAPE)
    )
    if not difference <= TOLERANCE:
        raise ExportRefused(
            f"the exported file differs from the network by {difference:.2g}; "
            f"{TOLERANCE:g} is allowed"
        )
    golden = _golden(graph)
    count = sum(each.numel() for each in folded(net).layers.parameters())
    detector = DetectorCard(
        sha256=sha256_hex(graph),
        golden_sha256=sha256_hex(golden),
        per_octave=PER_OCTAVE,
        sigma=sigma,
        is_default=is_default,
        method=f"score network of {count} weights on products of derivatives, like Key.Net",
        training_data=_training_data(entries["made_of"]),
        recipe={**read_recipe(run_dir).model_dump(mode="json"), "cpu_s": entries["cpu_s"]},
    )
    write_whole(model_dir / DETECTOR_FILE, graph)
    write_whole(model_dir / DETECTOR_GOLDEN_FILE, golden)
    write_card(card.model_copy(update={"detector": detector}), model_dir)
    return detector, difference


def to_onnx(net: ScoreNetwork) -> bytes:
    """Return the network as it is served, as an ONNX file."""
    sides = {
        2: torch.export.Dim("H", min=_LEAST_SIDE, max=_MOST_SIDE),
        3: torch.export.Dim("W", min=_LEAST_SIDE, max=_MOST_SIDE),
    }
    served = folded(net).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    with quiet(), warnings.catch_warnings():
        # The exporter warns about its own internals, which a user cannot change.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            served,
            (torch.zeros(1, 1, *_GOLDEN_SHAPE),),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes={"level": sides},
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise ExportRefused("torch returned no ONNX program")
    model = program.model_proto
    strip(model, "detector")
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


def run_onnx(graph: bytes, level: UInt8) -> Float32:
    """Return the scores (H, W) that an exported file gives of a grey image, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    scores: list[Any] = session.run([OUTPUT], {INPUT: level[None, None].astype(np.float32)})
    return np.asarray(scores[0][0, 0], np.float32)


def texture(shape: tuple[int, int], seed: int = 0) -> UInt8:
    """Return a generated image with structure of all sizes, and corners."""
    rng = np.random.default_rng(seed)
    height, width = shape
    image = np.zeros(shape, np.float32)
    for cell in (4, 8, 16, 32):
        coarse = rng.normal(0, 6 * np.sqrt(cell), (height // cell + 2, width // cell + 2))
        image += cv2.resize(
            coarse.astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC
        )
    for _ in range(12):
        top, left = int(rng.integers(0, height - 8)), int(rng.integers(0, width - 8))
        rows, columns = rng.integers(6, 30, 2).tolist()
        image[top : top + rows, left : left + columns] += rng.normal(0, 40)
    return np.clip(128 + image, 0, 255).astype(np.uint8)


def _difference(net: ScoreNetwork, graph: bytes, level: UInt8) -> float:
    with torch.inference_mode():
        expected = net(torch.from_numpy(level)[None, None].float())[0, 0].numpy()
    return float(np.abs(expected - run_onnx(graph, level)).max())


def _golden(graph: bytes) -> bytes:
    level = texture(_GOLDEN_SHAPE)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, level=level, scores=run_onnx(graph, level))
    return buffer.getvalue()


def _training_data(made_of: dict[str, int]) -> tuple[str, ...]:
    return tuple(f"{count} pairs of crops of {folder}" for folder, count in made_of.items())
