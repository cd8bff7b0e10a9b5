"""A narrow network that starts as a wide one of the same layers: the channels read most are kept.

Batch normalisation gives the channels of a layer about the same power, so what a channel is worth
is how strongly the next layer reads it, by its weights as they are. The narrow network starts some
way from what the wide one gave: its batch statistics too are those of the wide one until training
has measured its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from training.networks.widen import is_wider


def is_narrower(narrow: Mapping[str, Tensor], wide: Mapping[str, Tensor]) -> bool:
    """Whether `wide` has the layers of `narrow`, with channels to drop and none to be added.

    Layers must be convolutions one after the other, with batch normalisation: only there does a
    channel mean the same to all that read it.
    """
    if not is_wider(wide, narrow):
        return False
    # In the order of the layers, which a file does not keep.
    maps = _maps_read(narrow)
    return maps is not None and maps == _maps_read({key: wide[key] for key in narrow})


def narrowed(narrow: Mapping[str, Tensor], wide: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of `wide` in the shapes of `narrow`.

    A layer that reads several maps of the one before (a surround) has the channels of each in
    turn, and loses the same ones of each.
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
    """The `count` of `width` channels that the convolution `reader` weighs most, in their order."""
    power = reader.square().sum((0, 2, 3)).reshape(-1, width).sum(0)
    return power.topk(count).indices.sort().values


def _maps_read(state: Mapping[str, Tensor]) -> list[int] | None:
    """How many maps of the one before each convolution reads; None if they are not a chain.

    All else must be one value a channel, or one in all.
    """
    maps: list[int] = []
    width = 1
    for key, value in state.items():
        if not key.endswith(".weight"):
            if value.dim() > 1:
                return None
        # A name deeper than trunk.N.weight is of a block, whose channels are added to others.
        elif key.count(".") > 2 or value.dim() != 4 or value.shape[1] % width:
            return None
        else:
            maps.append(value.shape[1] // width)
            width = len(value)
    return maps
