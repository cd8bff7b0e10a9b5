"""The weights of a served model, to train on from what was published."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from matchserve.errors import ModelError
from matchserve.models.card import MODEL_FILE, read_card
from matchserve.models.onnx_model import sha256_hex
from training.errors import CheckpointError
from training.networks import NetworkOptions, build_network
from training.networks.folding import unfolded

# The card's recipe entry with the size ratio of the second domain of a model that pools two.
DOMAIN_ENTRY = "domain_size"


def is_model(source: Path) -> bool:
    """Whether `source` is a model directory."""
    return (source / MODEL_FILE).is_file()


def read_weights(directory: Path) -> tuple[Path, dict[str, Tensor]]:
    """The graph's file, and the state of the network that it was exported from.

    Raises:
        CheckpointError: there is no such model, or it was not exported here, or it is quantised.
    """
    path = directory / MODEL_FILE
    try:
        card = read_card(directory)
        data = path.read_bytes()
    except (ModelError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if sha256_hex(data) != card.sha256:
        raise CheckpointError(f"{path}: not the file that its card names")
    try:
        # A crop that two domains are taken of is larger than the network's own.
        size = round(card.patch.size / card.recipe.get(DOMAIN_ENTRY, 1.0))
        net = build_network(NetworkOptions(**card.recipe["network"]), size)
        return path, unfolded(net, float_tensors(data))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"{path}: not a float graph of a network known here ({error}); "
            "quantised models cannot be trained on, those they were made of can"
        ) from error


def float_tensors(graph: bytes) -> dict[str, Tensor]:
    """The constants of an ONNX file that are single-precision numbers, by name."""
    return {
        item.name: torch.from_numpy(numpy_helper.to_array(item).copy())
        for item in onnx.load_from_string(graph).graph.initializer
        if item.data_type == onnx.TensorProto.FLOAT
    }
