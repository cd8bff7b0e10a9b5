"""Fold batch normalisation into the convolutions before it, and undo that.

An exported graph has convolutions with biases and no normalisation. Unfolding takes the weights of
the graph, and chooses the normalisation statistics that reproduce its biases. The channels are
scaled differently than in the original network, but the descriptors are the same, and the network
can be trained further.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from training.networks.layers import BatchNorm, DescriptorNet


def folded(net: DescriptorNet) -> DescriptorNet:
    """Return a copy with every batch normalisation folded into the convolution before it."""
    result = copy.deepcopy(net).eval()
    layers: list[nn.Module] = []
    for layer in result.trunk:
        if isinstance(layer, BatchNorm):
            layers[-1] = fuse_conv_bn_eval(cast(nn.Conv2d, layers[-1]), layer)
        elif not isinstance(layer, nn.Dropout):
            layers.append(layer)
    result.trunk = nn.Sequential(*layers)
    return result


def unfolded(net: DescriptorNet, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of `net` that gives the same descriptors as its folded form with `weights`.

    Raises:
        KeyError: a weight is missing.
        ValueError: a weight has another shape.
    """
    state = net.state_dict()
    for place, (layer, norm) in enumerate(_folding_layers(net)):
        for name, value in net.trunk[layer].state_dict().items():
            key = f"trunk.{layer}.{name}"
            state[key] = _checked(f"trunk.{place}.{name}", weights, value.shape)
        if norm is not None:
            statistics = cast(BatchNorm, net.trunk[norm])
            shift = f"trunk.{place}.bias"
            mean = _checked(shift, weights, state[f"trunk.{norm}.running_mean"].shape)
            state[f"trunk.{norm}.running_mean"] = -mean
            state[f"trunk.{norm}.running_var"] = torch.full_like(mean, 1.0 - statistics.eps)
    return state


def _folding_layers(net: DescriptorNet) -> Iterator[tuple[int, int | None]]:
    """Yield, for each layer of the folded trunk, its index in the trunk and its normalisation's."""
    kinds = list(net.trunk)
    for index, layer in enumerate(kinds):
        if isinstance(layer, BatchNorm | nn.Dropout):
            continue
        following = [
            i for i in range(index + 1, len(kinds)) if not isinstance(kinds[i], nn.Dropout)
        ]
        is_folded = bool(following) and isinstance(kinds[following[0]], BatchNorm)
        yield index, following[0] if is_folded else None


def _checked(key: str, weights: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
    value = weights[key]
    if value.shape != shape:
        raise ValueError(f"{key} is {tuple(value.shape)}, not {tuple(shape)}")
    return value
