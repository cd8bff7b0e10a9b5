"""Read the weights of a run, a weights file or a published model, and put them into a network."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from training.errors import CheckpointError
from training.networks import published
from training.networks.layers import DescriptorNet
from training.networks.start import load_state, start_from_state
from training.runs.checkpoint import Checkpoints, Stored, read_tensors, with_prefix
from training.runs.directory import FINAL_FILE, find_run


def read_network(source: Path) -> Stored:
    """Read weights from a run (final, else newest checkpoint), a model directory or a file.

    `runs/NAME` stands for `runs/NAME-ID` if there is exactly one such run.

    Raises:
        CheckpointError: there are no weights, or they cannot be read.
    """
    source = find_run(source)
    if source.is_file():
        return read_tensors(source)
    if published.is_model(source):
        path, state = published.read_weights(source)
        return Stored(path, {f"net.{key}": value for key, value in state.items()}, {})
    final = source / FINAL_FILE
    if final.exists():
        return read_tensors(final)
    stored, _ = Checkpoints(source / "checkpoints").newest()
    if stored is None:
        raise CheckpointError(
            f"{source}: no weights there; expected a run directory, a model directory or a "
            "file of weights"
        )
    return stored


def load_network_weights(net: nn.Module, source: Path) -> Path:
    """Load the weights of `source` into `net`, which must have the same layers; return their file.

    Raises:
        CheckpointError: there are no weights, or they belong to another network.
    """
    stored = read_network(source)
    try:
        load_state(net, with_prefix(stored.tensors, "net."))
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error.message}") from error
    return stored.path


def start_network(net: DescriptorNet, source: Path, seed: int) -> tuple[Path, str]:
    """Initialise `net` from `source`; return the file, and what `start_from_state` changed.

    Raises:
        CheckpointError: there are no weights, or they belong to another network.
    """
    stored = read_network(source)
    try:
        return stored.path, start_from_state(net, with_prefix(stored.tensors, "net."), seed)
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error.message}") from error
