"""Read weights that others published as a PyTorch file, and fit them to a network of this package.

The layers are matched in order, not by name: every published implementation of L2-Net names them
differently, but has the same seven convolutions, each with its normalisation. Every shape is
checked, and a file with one layer more or less is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from training.errors import CheckpointError
from training.networks import NetworkOptions, build_network
from training.networks.layers import BatchNorm, DescriptorNet, FilterResponseNorm, Head

PATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class Layout:
    """A published network: the network of this package that it equals, and its head.

    `is_biased`: patches are standardised by the biased standard deviation (torch's InstanceNorm).
    """

    network: str
    head: Head = "unit"
    is_biased: bool = False


LAYOUTS: dict[str, Layout] = {
    "l2net": Layout("l2net"),
    "hardnet": Layout("l2net"),
    "sosnet": Layout("l2net", is_biased=True),
    "hynet": Layout("hynet"),
    "sdgm": Layout("hynet"),
    "tfeat": Layout("tfeat", head="linear", is_biased=True),
}
# Names of other implementations, for filter response normalisation.
_OWN_NAMES = {"weight": "gamma", "bias": "beta"}
_LAST_MODULES = ("descr",)
_IGNORED = ("num_batches_tracked", "eps")


def read_published(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a .pth, .pt, .params or .safetensors file, in the order of the layers.

    Code in the file is not run: only tensors and plain values are accepted.

    Raises:
        CheckpointError: the file cannot be read, or holds no weights.
    """
    try:
        if path.suffix == ".safetensors":
            loaded: Any = dict(sorted(load_file(path).items(), key=_order))
        else:
            # Published weights are pickles; `weights_only` refuses everything that is not data.
            loaded = torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251
    except (OSError, RuntimeError, ValueError, EOFError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {_first_line(error)}") from error
    except Exception as error:  # torch raises UnpicklingError and others here
        raise CheckpointError(
            f"{path}: not a file of plain weights ({_first_line(error)})"
        ) from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    state = {
        str(key).removeprefix("module."): value.float()
        for key, value in (loaded.items() if isinstance(loaded, Mapping) else ())
        if isinstance(value, Tensor)
    }
    if not state:
        raise CheckpointError(f"{path}: holds no named tensors")
    return state


def build_published(name: str, state: Mapping[str, Tensor]) -> tuple[NetworkOptions, DescriptorNet]:
    """Build the network that was published as `name`, with the weights `state`.

    Raises:
        CheckpointError: a layer is missing, is too many or has another shape.
    """
    layout = LAYOUTS[name]
    matrices = [value for value in state.values() if value.dim() in (2, 4) and value.shape[0] > 1]
    dim = matrices[-1].shape[0] if matrices else 128
    options = NetworkOptions(name=layout.network, dim=dim, head=layout.head, dropout=0.0)
    net = build_network(options, PATCH_SIZE)
    own = _fit(net, _layers(state))
    if layout.is_biased:
        # Their standard deviation is smaller by this factor, which the first convolution absorbs.
        count = PATCH_SIZE * PATCH_SIZE
        first = next(key for key in own if own[key].dim() == 4)
        own[first] = own[first] * math.sqrt(count / (count - 1))
    net.load_state_dict(own, strict=False)
    return options, net.eval()


def _layers(state: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Group the tensors by their layer, in the order of the file."""
    layers: dict[str, dict[str, Tensor]] = {}
    for key, value in state.items():
        layer, _, name = key.rpartition(".")
        if name not in _IGNORED:
            layers.setdefault(layer, {})[name] = value
    return layers


def _fit(net: DescriptorNet, layers: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    own = [(name, module) for name, module in net.named_modules() if _tensors(module)]
    if len(own) != len(layers):
        raise CheckpointError(
            f"the file has {len(layers)} layers with weights, the network has {len(own)}"
        )
    result: dict[str, Tensor] = {}
    for (name, module), (theirs, tensors) in zip(own, layers.items(), strict=True):
        given = _renamed(module, theirs, tensors)
        for key, value in _tensors(module).items():
            if key not in given or given[key].shape != value.shape:
                shape = tuple(given[key].shape) if key in given else "nothing"
                raise CheckpointError(
                    f"layer {theirs!r}: expected {key} of shape {tuple(value.shape)}, found {shape}"
                )
            result[f"{name}.{key}"] = given[key]
        if set(given) - set(_tensors(module)):
            raise CheckpointError(f"layer {theirs!r}: unexpected {', '.join(given)}")
    return result


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the module's own parameters and buffers, without the counter of batches."""
    tensors: dict[str, Tensor] = dict(module.named_buffers(recurse=False))
    tensors |= dict(module.named_parameters(recurse=False))
    return {key: value for key, value in tensors.items() if key not in _IGNORED}


def _renamed(module: nn.Module, layer: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if isinstance(module, FilterResponseNorm):
        return {_OWN_NAMES.get(key, key): value for key, value in tensors.items()}
    if not isinstance(module, BatchNorm):
        return dict(tensors)
    scale, shift = tensors.get("weight"), tensors.get("bias")
    if (scale is not None and bool((scale != 1).any())) or (shift is not None and shift.any()):
        raise CheckpointError(f"layer {layer!r}: its normalisation has learned scales or shifts")
    return {key: value for key, value in tensors.items() if key not in ("weight", "bias")}


def _order(item: tuple[str, Tensor]) -> tuple[bool, list[Any]]:
    """Sort by layer numbers; safetensors files have lost the order of the layers."""
    parts = re.split(r"(\d+)", item[0])
    return item[0].startswith(_LAST_MODULES), [int(p) if p.isdigit() else p for p in parts]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
