"""Write a model directory from weights that others published."""

from __future__ import annotations

import hashlib
from pathlib import Path

import cv2
import numpy as np

from matchserve.archives import read_npz
from matchserve.errors import MatchServeError
from matchserve.models.card import ModelCard
from matchserve.types import PatchSpec, UInt8
from training.errors import CheckpointError, DataError, ExportRefused
from training.export.cards import IMPORT_ENTRY, CardText
from training.export.export import write_model
from training.export.graph import to_onnx
from training.export.parity import Parity
from training.export.trained import Trained
from training.networks.layouts import LAYOUTS, PATCH_SIZE, build_published, read_published
from training.recipes.suggestions import unknown_name
from training.runs.recipe import Recipe

# Authors' code standardises patches of 0..1 with an epsilon that is visible in flat patches.
GOLDEN_TOLERANCE = 2e-3
_SAMPLES = 256

MAX_EXPECTED_BYTES = 1 << 30
"""Maximum size of the arrays that an imported network is compared with."""


def import_model(
    file: Path,
    network: str,
    out: Path,
    text: CardText,
    *,
    golden: Path | None = None,
    magnification: float = 12.0,
) -> tuple[ModelCard, Parity]:
    """Write the model directory `out` from the published weights `file` of `network`.

    `golden` is an .npz file with `patches` (uint8) and the `descriptors` that the authors' code
    computes of them; the model must agree.

    Raises:
        CheckpointError: the file cannot be read, or its shapes are not those of the network.
        ExportRefused: `out` exists, or the model disagrees with the network or with `golden`.
    """
    if network not in LAYOUTS:
        raise CheckpointError(unknown_name("published network", network, LAYOUTS))
    try:
        options, net = build_published(network, read_published(file))
    except CheckpointError as error:
        if str(file) in error.message:
            raise
        raise CheckpointError(f"{file}: not the weights of {network}: {error.message}") from error
    spec = PatchSpec(size=PATCH_SIZE, magnification=magnification)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    recipe = Recipe.model_construct(name=network, network=options)
    trained = Trained(net, recipe, spec, (), _samples(), {}, {IMPORT_ENTRY: digest})
    if golden is not None:
        check_golden(trained, golden)
    return write_model(trained, to_onnx(net, spec), out, text)


def check_golden(trained: Trained, golden: Path) -> None:
    """Compare the network with descriptors that the authors' code computed.

    Raises:
        DataError: the file is not as expected.
        ExportRefused: the descriptors differ.
    """
    try:
        arrays = read_npz(golden.read_bytes(), MAX_EXPECTED_BYTES)
        patches, expected = arrays["patches"], arrays["descriptors"]
    except (OSError, KeyError, MatchServeError) as error:
        raise DataError(f"{golden}: expected an .npz of patches and descriptors") from error
    patches = np.asarray(patches, np.uint8).reshape(-1, 1, PATCH_SIZE, PATCH_SIZE)
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    actual = trained.describe(patches)
    if expected.shape != actual.shape:
        raise ExportRefused(f"{golden}: descriptors {expected.shape}, the network's {actual.shape}")
    worst = float(np.abs(actual - expected).max())
    if not worst <= GOLDEN_TOLERANCE:
        raise ExportRefused(
            f"{golden}: the network differs from these descriptors by {worst:.2g}; "
            f"{GOLDEN_TOLERANCE:g} is allowed"
        )


def _samples() -> UInt8:
    """Generate smooth patches to compare the served file with the network."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (_SAMPLES, 9, 9)).astype(np.uint8)
    return np.stack([cv2.resize(patch, (PATCH_SIZE, PATCH_SIZE)) for patch in coarse])[:, None]
