"""Read the weights of a published model from its ONNX file, to train it further."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from matchserve.errors import ModelError
from matchserve.models.card import MODEL_FILE, ModelCard, read_card
from matchserve.models.model_files import sha256_hex
from training.errors import CheckpointError
from training.networks import NetworkOptions, build_network
from training.networks.folding import unfolded
from training.networks.layers import DescriptorNet

# Entries of a card's recipe, if the model averages several domain sizes: the largest as a multiple
# of the trained one, and all of them, the trained one too, if there are more than two.
DOMAIN_ENTRY, DOMAINS_ENTRY = "domain_size", "domain_sizes"


def is_model(source: Path) -> bool:
    """Return whether `source` is a model directory."""
    return (source / MODEL_FILE).is_file()


def read_weights(directory: Path) -> tuple[Path, dict[str, Tensor]]:
    """Return the path of the ONNX file, and the state of the network that it was exported from.

    Raises:
        CheckpointError: the model cannot be read, was not exported here, or is quantised.
    """
    path = directory / MODEL_FILE
    try:
        card = read_card(directory)
        data = path.read_bytes()
    except (ModelError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if sha256_hex(data) != card.sha256:
        raise CheckpointError(f"{path}: its SHA-256 differs from the one in its card")
    try:
        return path, unfolded(_network(card), float_tensors(data))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f"{path}: not the float graph of a known network ({reason}); a quantised model cannot "
            "be trained further: start from the float model that it was made from"
        ) from error


def network_of(directory: Path) -> DescriptorNet:
    """Return the network of a model directory with its weights, ready to describe.

    Raises:
        CheckpointError: the model cannot be read, was not exported here, or is quantised.
    """
    _, state = read_weights(directory)
    card = read_card(directory)
    net = _network(card)
    net.load_state_dict(state)
    return net.eval()


def float_tensors(graph: bytes) -> dict[str, Tensor]:
    """Return the single-precision constants of an ONNX file, by name."""
    return {
        item.name: torch.from_numpy(numpy_helper.to_array(item).copy())
        for item in onnx.load_from_string(graph).graph.initializer
        if item.data_type == onnx.TensorProto.FLOAT
    }


def _network(card: ModelCard) -> DescriptorNet:
    """Return the untrained network of a model."""
    # A model that averages several domain sizes takes larger patches than its network.
    size = round(card.patch.size / card.recipe.get(DOMAIN_ENTRY, 1.0))
    return build_network(NetworkOptions(**card.recipe["network"]), size)
