"""Checkpoints: one safetensors file each, which is complete or absent, and verified when read.

A file is written under a temporary name, flushed to disk and renamed, so a process that is killed
leaves the earlier checkpoints intact. The header has a digest of all tensors and entries; a file
that does not match its digest is skipped, with a message, and the one before it is used. The last
two checkpoints are kept.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from matchserve.files import remove_leftovers, write_whole
from training.errors import CheckpointError
from training.methods.contract import PairLoss
from training.methods.samplers import Sampler
from training.networks.layers import DescriptorNet
from training.runs.precision import LossScale

KEPT = 2
# Entry of a weights file: the SHA-256 of the weights that the run started from.
START_ENTRY = "init_from_sha256"
# Entry of averaged weights: the share of the run, the rest being what it started from.
BLEND_ENTRY = "blend_share"
_NAME = re.compile(r"step-(\d{9})\.safetensors")


@dataclass(slots=True, eq=False)
class TrainState:
    """The complete state of a run. Random draws depend only on (seed, step) and have no state."""

    step: int
    net: DescriptorNet
    optimizer: torch.optim.Optimizer
    loss: PairLoss
    sampler: Sampler
    scale: LossScale | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as named tensors."""
        named = {f"net.{k}": v for k, v in self.net.state_dict().items()}
        named |= {f"loss.{k}": v for k, v in self.loss.state_dict().items()}
        named |= {f"sampler.{k}": v for k, v in self.sampler.state_dict().items()}
        if self.scale is not None:
            named |= {f"scale.{k}": v for k, v in self.scale.state_dict().items()}
        for index, entry in self.optimizer.state_dict()["state"].items():
            named |= {f"optim.{index}.{k}": v for k, v in entry.items() if v is not None}
        return named

    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Restore the state that `tensors()` returned after `step` steps.

        Raises:
            CheckpointError: they belong to another network, loss, sampler or optimiser.
        """
        try:
            self._restore(tensors)
        except (RuntimeError, ValueError, KeyError) as error:
            first = str(error).splitlines()[-1].strip()
            raise CheckpointError(
                f"the state belongs to another version or network: {first}; train the recipe in a "
                "new run directory, or use the version of matchserve that made this run"
            ) from error
        self.step = step

    def _restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.net.load_state_dict(with_prefix(tensors, "net."))
        self.loss.load_state_dict(with_prefix(tensors, "loss."))
        self.sampler.load_state_dict(with_prefix(tensors, "sampler."))
        if self.scale is not None:
            self.scale.load_state_dict(with_prefix(tensors, "scale."))
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in with_prefix(tensors, "optim.").items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})


class Savable(Protocol):
    """A state that can be saved: named tensors after a number of steps."""

    step: int

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as named tensors."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """The tensors and the other entries of a file; `sha256` is the digest of both."""

    path: Path
    tensors: dict[str, Tensor]
    entries: dict[str, Any]
    sha256: str = ""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], entries: Mapping[str, Any]) -> None:
    """Write `path` completely or not at all, even if the machine stops."""
    plain = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    text = json.dumps(entries, sort_keys=True)
    data = save(plain, metadata={"entries": text, "sha256": _digest(plain, text)})
    write_whole(path, data)


def read_tensors(path: Path) -> Stored:
    """Read a file that `write_tensors` wrote.

    Raises:
        CheckpointError: the file is missing, incomplete or altered.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    text = header.get("entries", "")
    if header.get("sha256") != _digest(tensors, text):
        raise CheckpointError(f"{path}: damaged: its content does not match its digest")
    return Stored(path, tensors, json.loads(text), header["sha256"])


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def files(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        paths = self.directory.glob("step-*.safetensors")
        return sorted((p for p in paths if _NAME.fullmatch(p.name)), reverse=True)

    def clean_up(self) -> None:
        """Remove the temporary files of interrupted saves."""
        remove_leftovers(self.directory)

    def save(self, state: Savable, entries: Mapping[str, Any]) -> Path:
        """Write the state and delete all but the last two checkpoints."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"step-{state.step:09d}.safetensors"
        write_tensors(path, state.tensors(), {**entries, "step": state.step})
        for old in self.files()[KEPT:]:
            old.unlink(missing_ok=True)
        return path

    def newest(self) -> tuple[Stored | None, list[str]]:
        """Return the newest readable checkpoint, if any, and messages about those skipped.

        Raises:
            CheckpointError: no checkpoint is readable; a run never starts over silently.
        """
        skipped: list[str] = []
        for path in self.files():
            try:
                return read_tensors(path), skipped
            except CheckpointError as error:
                skipped.append(error.message)
        if skipped:
            raise CheckpointError("no checkpoint is readable: " + "; ".join(skipped))
        return None, []


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose name begins with `prefix`, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    hasher = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        hasher.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        hasher.update(flat.numpy().tobytes())
    return hasher.hexdigest()
