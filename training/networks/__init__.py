"""The descriptor networks, by name, and what can be done with their weights.

- `l2net`, `residual`, `tfeat`, `compact`: the architectures; `layers`: what they are built from;
- `start`: initialise a network with the weights of the same or of a similar network;
- `widen`, `narrow`: initialise from a network with fewer or more channels;
- `folding`, `published`: batch normalisation in and out of convolutions, weights from ONNX;
- `layouts`: weights that others published as PyTorch files;
- `cost`: parameters and multiply-accumulates.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from training.networks.compact import Builder, builders
from training.networks.l2net import hynet, l2net
from training.networks.layers import DescriptorNet, Head
from training.networks.residual import residual
from training.networks.tfeat import tfeat
from training.recipes.options import FractionBelowOne, Options, PositiveInt, option_problem
from training.recipes.suggestions import unknown_name

NETWORKS: dict[str, Builder] = {
    "l2net": l2net,
    "hynet": hynet,
    "residual": residual,
    "tfeat": tfeat,
    **builders(),
}


class NetworkOptions(Options):
    """`[network]`: the architecture, its width and its output. All networks have the same keys.

    `dim` is the length of a descriptor. `head` is `unit` (descriptors of length 1), `binary` (`dim`
    bits) or `linear` (network outputs without normalisation; the exported model normalises them).
    `width` multiplies the number of channels.
    """

    name: str = "l2net"
    dim: PositiveInt = 128
    head: Head = "unit"
    width: Annotated[float, Field(ge=0.05)] = 1.0
    dropout: FractionBelowOne = 0.1

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name not in NETWORKS:
            raise option_problem("name", unknown_name("network", self.name, NETWORKS))
        if self.head == "binary" and self.dim % 8:
            raise option_problem("dim", f"bits are packed into bytes: {self.dim} is not 8 times n")
        return self


def build_network(options: NetworkOptions, patch_size: int) -> DescriptorNet:
    """Build the network of `options` for patches of `patch_size` samples on each side."""
    return NETWORKS[options.name](
        dim=options.dim,
        head=options.head,
        width=options.width,
        dropout=options.dropout,
        patch_size=patch_size,
    )


__all__ = [
    "NETWORKS",
    "Builder",
    "DescriptorNet",
    "Head",
    "NetworkOptions",
    "build_network",
]
