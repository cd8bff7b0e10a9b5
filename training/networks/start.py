"""Initialise a network with trained weights of the same network, or of a similar one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from training.errors import CheckpointError
from training.networks.layers import DescriptorNet, SpanningConv
from training.networks.narrow import is_narrower, narrowed
from training.networks.widen import is_wider, widened


def load_state(net: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load the weights `state` into `net`, which must have the same layers.

    Raises:
        CheckpointError: the weights belong to another network.
    """
    try:
        net.load_state_dict(state)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise CheckpointError(f"weights of another network: {first}") from error


def start_from_state(net: DescriptorNet, state: Mapping[str, Tensor], seed: int) -> str:
    """Initialise `net` with the weights `state`; return what had to be changed, if anything.

    - Another number of outputs: the last layers keep their random initialisation. The other network
      may then have more layers before them.
    - More channels than the other network: channels are duplicated.
    - Fewer channels: those that the next layer uses most are kept.
    - A surround that the other network does not have: both feature maps get half of the last
      layer's weights.

    Raises:
        CheckpointError: the weights belong to another network.
    """
    own = net.state_dict()
    last = _last_layers(net)
    body = {k: state[k] for k in own if k in state and not k.startswith(last)}
    own_body = {k: v for k, v in own.items() if not k.startswith(last)}
    has_other_outputs = any(
        k.startswith(last) and (k not in state or state[k].shape[:1] != own[k].shape[:1])
        for k in own
    )
    has_same_body = _shapes(body) == _shapes(own_body)
    if has_other_outputs and has_same_body:
        net.load_state_dict(body, strict=False)
        return "with new last layers"
    if not has_other_outputs and is_wider(own, state):
        load_state(net, widened(own, state, torch.Generator().manual_seed(seed)))
        # If only the last layer has more inputs, it reads a second feature map.
        return "with a surround added" if has_same_body else "widened"
    if not has_other_outputs and is_narrower(own, state):
        load_state(net, narrowed(own, state))
        return "narrowed"
    load_state(net, state)
    return ""


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in tensors.items()}


def _last_layers(net: nn.Module) -> tuple[str, ...]:
    """Return the name prefixes of the last `SpanningConv` and the layers after it."""
    layers = [name for name, module in net.named_modules() if not list(module.children())]
    spanning = [
        i for i, name in enumerate(layers) if isinstance(net.get_submodule(name), SpanningConv)
    ]
    return tuple(f"{name}." for name in layers[spanning[-1] :]) if spanning else ()
