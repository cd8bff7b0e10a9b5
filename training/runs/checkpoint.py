"""Checkpoints: one safetensors file each, complete or absent, checked when read.

A file is written under a temporary name, flushed to disk and renamed, so a kill at any moment
leaves the ones before it. Its header holds a digest of every tensor and of the other entries; a
file that fails it is skipped for the one before, and said so. The last two are kept.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from matchserve.files import remove_leftovers, write_whole
from training.errors import CheckpointError
from training.methods.contract import PairLoss
from training.methods.samplers import Sampler
from training.networks import published as served
from training.networks.layers import DescriptorNet, SpanningConv
from training.networks.narrow import is_narrower, narrowed
from training.networks.widen import is_wider, widened

KEPT = 2
_NAME = re.compile(r"step-(\d{9})\.safetensors")


@dataclass(slots=True, eq=False)
class TrainState:
    """Everything a run knows. Random draws are functions of (seed, step) and need no state."""

    step: int
    net: DescriptorNet
    optimizer: torch.optim.Optimizer
    loss: PairLoss
    sampler: Sampler

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as named tensors."""
        named = {f"net.{k}": v for k, v in self.net.state_dict().items()}
        named |= {f"loss.{k}": v for k, v in self.loss.state_dict().items()}
        named |= {f"sampler.{k}": v for k, v in self.sampler.state_dict().items()}
        for index, entry in self.optimizer.state_dict()["state"].items():
            named |= {f"optim.{index}.{k}": v for k, v in entry.items() if v is not None}
        return named

    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Take back what `tensors` gave, at `step`.

        Raises:
            CheckpointError: they are not those of this network, loss, sampler or optimiser.
        """
        try:
            self._restore(tensors)
        except (RuntimeError, ValueError, KeyError) as error:
            first = str(error).splitlines()[-1].strip()
            raise CheckpointError(f"the state of another version or network: {first}") from error
        self.step = step

    def _restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.net.load_state_dict(_under(tensors, "net."))
        self.loss.load_state_dict(_under(tensors, "loss."))
        self.sampler.load_state_dict(_under(tensors, "sampler."))
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in _under(tensors, "optim.").items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A file's tensors and its other entries."""

    path: Path
    tensors: dict[str, Tensor]
    entries: dict[str, Any]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], entries: Mapping[str, Any]) -> None:
    """Write `path` so that it is there whole or not at all, even if the machine stops."""
    plain = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    text = json.dumps(entries, sort_keys=True)
    data = save(plain, metadata={"entries": text, "sha256": _digest(plain, text)})
    write_whole(path, data)


def read_tensors(path: Path) -> Stored:
    """Read a file of `write_tensors`.

    Raises:
        CheckpointError: it is missing, cut off or altered.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    text = header.get("entries", "")
    if header.get("sha256") != _digest(tensors, text):
        raise CheckpointError(f"{path}: content does not match its digest")
    return Stored(path, tensors, json.loads(text))


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def files(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        found = [p for p in self.directory.glob("step-*.safetensors") if _NAME.fullmatch(p.name)]
        return sorted(found, reverse=True)

    def sweep(self) -> None:
        """Remove what interrupted saves left."""
        remove_leftovers(self.directory)

    def save(self, state: TrainState, entries: Mapping[str, Any]) -> Path:
        """Write the state and drop all but the last two."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"step-{state.step:09d}.safetensors"
        write_tensors(path, state.tensors(), {**entries, "step": state.step})
        for old in self.files()[KEPT:]:
            old.unlink(missing_ok=True)
        return path

    def newest(self) -> tuple[Stored | None, list[str]]:
        """Return the newest readable checkpoint, none if there are none, and what was skipped.

        Raises:
            CheckpointError: there are some and none is readable: never start over silently.
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


def load_network_weights(net: nn.Module, source: Path) -> Path:
    """Put the network weights of a run, or of one file, into `net`; return the file.

    Raises:
        CheckpointError: there are none, or they are of another network.
    """
    stored = read_network(source)
    try:
        net.load_state_dict(_under(stored.tensors, "net."))
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise CheckpointError(f"{source}: weights of another network: {first}") from error
    return stored.path


def start_network(net: DescriptorNet, source: Path, seed: int) -> tuple[Path, str]:
    """Put the weights of `source` into `net`, which may be wider, narrower or end otherwise.

    Return the file, and in words what could not be taken as it was: last layers of another size
    are left as they are, also where the source has more layers before them; channels that the
    source has not are copies of those it has, and of those too many the most read are kept; a
    surround gets half of the middle's last weights.

    Raises:
        CheckpointError: there are none, or they are of another network.
    """
    stored = read_network(source)
    given, own = _under(stored.tensors, "net."), net.state_dict()
    last = _last_layers(net)
    body = {k: given[k] for k in own if k in given and not k.startswith(last)}
    own_body = {k: v for k, v in own.items() if not k.startswith(last)}
    is_other_end = any(
        k.startswith(last) and (k not in given or given[k].shape[:1] != own[k].shape[:1])
        for k in own
    )
    if is_other_end and shapes(body) == shapes(own_body):
        net.load_state_dict(body, strict=False)
        return stored.path, ", with new last layers"
    if not is_other_end and is_wider(own, given):
        generator = torch.Generator().manual_seed(seed)
        net.load_state_dict(widened(own, given, generator))
        # Where only the last layer is wider, it reads a second map.
        has_surround_added = shapes(body) == shapes(own_body)
        return stored.path, ", with a surround added" if has_surround_added else ", widened"
    if not is_other_end and is_narrower(own, given):
        net.load_state_dict(narrowed(own, given))
        return stored.path, ", narrowed"
    return load_network_weights(net, source), ""


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """The shape of each tensor."""
    return {k: v.shape for k, v in tensors.items()}


def _last_layers(net: nn.Module) -> tuple[str, ...]:
    """Prefixes of the weights from the convolution that spans its map to the end."""
    layers = [name for name, m in net.named_modules() if not list(m.children())]
    spanning = [
        i for i, name in enumerate(layers) if isinstance(net.get_submodule(name), SpanningConv)
    ]
    return tuple(f"{name}." for name in layers[spanning[-1] :]) if spanning else ()


def read_network(source: Path) -> Stored:
    """Read a run's final weights, else its newest checkpoint; a model's; or the file `source`.

    `runs/NAME` stands for `runs/NAME-ID` where there is just one such run.
    """
    source = find_run(source)
    if source.is_file():
        return read_tensors(source)
    if served.is_model(source):
        path, state = served.read_weights(source)
        return Stored(path, {f"net.{key}": value for key, value in state.items()}, {})
    final = source / "final.safetensors"
    if final.exists():
        return read_tensors(final)
    stored, _ = Checkpoints(source / "checkpoints").newest()
    if stored is None:
        raise CheckpointError(f"{source}: no weights there")
    return stored


def find_run(source: Path) -> Path:
    """Return `source`, or the one run `source-ID` where nothing is at `source` itself.

    Raises:
        CheckpointError: there are several such runs.
    """
    if source.exists():
        return source
    # An id is twelve digits, so NAME does not take NAME-finetune-ID for its own.
    runs = sorted(source.parent.glob(f"{source.name}-{'[0-9a-f]' * 12}"))
    if len(runs) > 1:
        names = ", ".join(str(run) for run in runs)
        raise CheckpointError(f"{source}: several runs have that name, say which: {names}")
    return runs[0] if runs else source


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    hasher = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        hasher.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        hasher.update(flat.numpy().tobytes())
    return hasher.hexdigest()
