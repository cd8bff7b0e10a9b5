"""Initialise a network from one with fewer channels (Net2Net, Chen et al., 2016).

Channels are duplicated, and the weights that read a channel are divided among its copies, so the
wide network gives the same output as the narrow one. A little noise lets the copies diverge.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

# As a fraction of the standard deviation of each layer's weights.
NOISE = 0.1


def is_wider(wide: Mapping[str, Tensor], narrow: Mapping[str, Tensor]) -> bool:
    """Return whether `narrow` has the same layers as `wide`, with as many or fewer channels."""
    if wide.keys() != narrow.keys():
        return False
    pairs = [(wide[k].shape, narrow[k].shape) for k in wide]
    fits = all(
        len(a) == len(b) and a[2:] == b[2:] and all(x >= y for x, y in zip(a, b, strict=True))
        for a, b in pairs
    )
    return fits and any(a != b for a, b in pairs)


def widened(
    wide: Mapping[str, Tensor],
    narrow: Mapping[str, Tensor],
    generator: torch.Generator,
    *,
    noise: float = NOISE,
) -> dict[str, Tensor]:
    """Return the weights of `narrow` in the shapes of `wide`; channel i copies channel i modulo n.

    A layer that reads two feature maps (of a network with a surround) has the channels of one after
    those of the other. If the narrow network read only one, both get half of its weights.
    """
    result = {}
    read = (1, 1)
    # `wide` is in the order of the layers; a file does not keep that order.
    for key, held in wide.items():
        value, shape = narrow[key], held.shape
        inputs = _inputs(shape, value.shape, read) if value.dim() == 4 else None
        result[key] = _copied(value, shape, inputs, generator, noise)
        if value.dim() == 4:
            read = (shape[0], value.shape[0])
    return result


def _inputs(wide: torch.Size, narrow: torch.Size, read: tuple[int, int]) -> Tensor:
    """Return the narrow input channel that each wide input channel copies.

    `read` is the number of channels of one feature map, in the wide and in the narrow network.
    """
    number = torch.arange(wide[1])
    maps = max(1, narrow[1] // read[1])
    return number // read[0] % maps * read[1] + number % read[0] % read[1]


def _copied(
    value: Tensor,
    shape: torch.Size,
    inputs: Tensor | None,
    generator: torch.Generator,
    noise: float,
) -> Tensor:
    if value.dim() == 0 or value.shape == shape:
        return value.clone()
    outputs = torch.arange(shape[0]) % value.shape[0]
    if value.dim() == 1:
        return value[outputs]
    if inputs is None:
        inputs = torch.arange(shape[1]) % value.shape[1]
    copies = torch.bincount(inputs, minlength=value.shape[1])
    shared = value / copies.reshape(1, -1, *[1] * (value.dim() - 2))
    result = shared[outputs][:, inputs]
    drawn = torch.randn(result.shape, generator=generator, dtype=result.dtype)
    return result + noise * result.std() * drawn
