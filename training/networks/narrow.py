"""Initialise a network from one with more channels: keep the channels that are used most.

Batch normalisation gives all channels of a layer about the same power, so the importance of a
channel is the magnitude of the weights with which the next layer reads it. The narrow network is
only an approximation of the wide one, and its batch statistics are those of the wide network until
training has measured new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from training.networks.widen import is_wider


def is_narrower(narrow: Mapping[str, Tensor], wide: Mapping[str, Tensor]) -> bool:
    """Return whether `wide` has the same layers as `narrow`, with as many or more channels.

    Returns False unless the layers are a chain of convolutions with batch normalisation. Narrowing
    removes channels, and in a residual block this would add channels that do not correspond.
    """
    if not is_wider(wide, narrow):
        return False
    # `narrow` is in the order of the layers; a file does not keep that order.
    maps = _maps_read(narrow)
    return maps is not None and maps == _maps_read({key: wide[key] for key in narrow})


def narrowed(narrow: Mapping[str, Tensor], wide: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of `wide` reduced to the shapes of `narrow`.

    A layer that reads two feature maps (of a network with a surround) has the channels of one after
    those of the other, and loses the same channels of both.
    """
    convs = [key for key in narrow if key.endswith(".weight")]
    readers = dict(pairwise(convs))
    kept, width = torch.arange(1), 1
    result = {}
    for key, held in narrow.items():
        value = wide[key]
        if key in convs:
            maps = value.reshape(len(value), -1, width, *value.shape[2:])
            value = maps[:, :, kept].flatten(1, 2)
            width = len(value)
            kept = torch.arange(width)
            if key in readers:
                kept = _most_read(wide[readers[key]], width, len(held))
        result[key] = value[kept] if value.dim() else value.clone()
    return result


def _most_read(reader: Tensor, width: int, count: int) -> Tensor:
    """Return the `count` of `width` channels with the largest weights in `reader`, in order."""
    power = reader.square().sum((0, 2, 3)).reshape(-1, width).sum(0)
    return power.topk(count).indices.sort().values


def _maps_read(state: Mapping[str, Tensor]) -> list[int] | None:
    """Return how many feature maps each convolution reads, or None if they are not a chain.

    Other tensors must have one value per channel, or a single value.
    """
    maps: list[int] = []
    width = 1
    for key, value in state.items():
        if not key.endswith(".weight"):
            if value.dim() > 1:
                return None
        # A name deeper than trunk.N.weight belongs to a block, whose channels are added to others.
        elif key.count(".") > 2 or value.dim() != 4 or value.shape[1] % width:
            return None
        else:
            maps.append(value.shape[1] // width)
            width = len(value)
    return maps
