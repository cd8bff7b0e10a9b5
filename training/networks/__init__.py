"""The descriptor networks, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from training.networks.compact import Builder, builders
from training.networks.l2net import hynet, l2net
from training.networks.layers import DescriptorNet, Head
from training.networks.residual import residual
from training.runs.ranges import Count, Range

NETWORKS: dict[str, Builder] = {
    "l2net": l2net,
    "hynet": hynet,
    "residual": residual,
    **builders(),
}


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """`[network]`: which architecture, how wide, what comes out.

    `head` is `unit` (rows of length 1), `binary` (dim bits) or `linear` (as it is; exported with
    unit rows). `width` multiplies the channels.
    """

    name: str = "l2net"
    dim: Count = 128
    head: Head = "unit"
    width: Annotated[float, Range(0.05)] = 1.0
    dropout: Annotated[float, Range(0.0, below=1.0)] = 0.1


def build_network(options: NetworkOptions, patch_size: int) -> DescriptorNet:
    """Build the network that `options` describe for patches of `patch_size`."""
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
