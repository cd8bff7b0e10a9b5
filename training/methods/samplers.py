"""Samplers: which patches of a class become the pair that a training step learns from.

A sampler receives `candidates` patches of each class and selects two of them. This module has the
interface and the uniform sampler; a sampler that belongs to a method is in that method's module.
All random draws depend only on (seed, step).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from training.methods.contract import LossOutput
from training.networks.layers import DescriptorNet, Head
from training.recipes.options import AtLeastTwo, Options

Order = Literal["replacement", "epoch", "neighbours", "mixed"]


class SamplerOptions(Options):
    """Keys of `[sampler]` that every sampler has.

    `order` is how the classes of a batch are chosen:
    `replacement` draws them at random from all images, independently for every batch;
    `epoch` shuffles all classes and uses each once before the next shuffle;
    `neighbours` draws up to `neighbours` classes from one image, then from the next image, because
    a matcher has to tell apart the keypoints of one image;
    `mixed` draws half of the batch like `neighbours` and half like `replacement`.
    """

    name: str
    order: Order = "replacement"
    neighbours: AtLeastTwo = 64

    @property
    def copy_rotation_deg(self) -> float:
        """Largest rotation of a copied patch, for classes with fewer patches than candidates."""
        return 0.0

    def check_against(self, loss: Options, head: Head) -> None:
        """Refuse a loss or a network head that this sampler cannot be combined with.

        Raises:
            PydanticCustomError: made by `option_problem`.
        """


class UniformOptions(SamplerOptions):
    """`[sampler]` that takes two random patches of each class."""

    name: Literal["uniform"] = "uniform"


class Selection(NamedTuple):
    """The pairs of this process, (n, 2, 1, S, S), and the weights of the pairs of all processes."""

    patches: Tensor
    weights: Tensor | None


class Sampler(Protocol):
    """Selects the pairs of a batch; everything that it remembers is in its `state_dict`."""

    @property
    def candidates(self) -> int:
        """Number of patches of each class that the sampler selects from."""
        ...

    def select(
        self, net: DescriptorNet, patches: Tensor, generator: torch.Generator, progress: float
    ) -> Selection:
        """Select one pair from each row of `patches` (n, candidates, 1, S, S)."""
        ...

    def observe(self, output: LossOutput) -> None:
        """Update what the sampler remembers with the loss of the last batch."""
        ...

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return everything that the sampler remembers."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Restore what `state_dict` returned."""
        ...

    def to(self, device: torch.device) -> Any:
        """Move the state to `device`."""
        ...


class Uniform(nn.Module):
    """Two random patches of each class; remembers nothing."""

    candidates = 2

    def __init__(self, options: UniformOptions) -> None:
        super().__init__()
        self.options = options

    def select(
        self, net: DescriptorNet, patches: Tensor, generator: torch.Generator, progress: float
    ) -> Selection:
        """Return `patches` unchanged: the batch already holds two random patches of each class."""
        del net, generator, progress
        return Selection(patches, None)

    def observe(self, output: LossOutput) -> None:
        """Do nothing."""


AnySampler = TypeVar("AnySampler", bound=SamplerOptions)


@dataclass(frozen=True, slots=True)
class SamplerEntry(Generic[AnySampler]):
    """An entry of `SAMPLERS`: the options class of a sampler, and how to build the sampler."""

    options: type[AnySampler]
    build: Callable[[AnySampler], Sampler]
