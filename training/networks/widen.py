"""A wide network that starts as a narrow one of the same layers (Chen et al., Net2Net, 2016).

Every channel is copied and the weights that read the copies share what the one had, so the wide
network gives what the narrow one gave; a little noise lets the copies part.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

# Of the standard deviation of each layer's weights.
NOISE = 0.1


def is_wider(wide: Mapping[str, Tensor], narrow: Mapping[str, Tensor]) -> bool:
    """Whether `narrow` has the layers of `wide`, with channels to be copied and none to drop."""
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
    """The weights of `narrow` in the shapes of `wide`; wide channel i is a copy of i modulo n.

    A layer that reads several maps of the one before (a surround) has the channels of each in
    turn. Where the narrow network's read one, both get its weights, half of each.
    """
    result = {}
    read = (1, 1)
    # In the order of the layers, which a file does not keep.
    for key, held in wide.items():
        value, shape = narrow[key], held.shape
        inputs = _inputs(shape, value.shape, read) if value.dim() == 4 else None
        result[key] = _copied(value, shape, inputs, generator, noise)
        if value.dim() == 4:
            read = (shape[0], value.shape[0])
    return result


def _inputs(wide: torch.Size, narrow: torch.Size, read: tuple[int, int]) -> Tensor:
    """Of each input channel of a wide convolution, the narrow one's; `read` are those of a map."""
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
