"""What a loss is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from training.networks.layers import Head


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Descriptors of one batch, of all ranks: row i of both is one class, every row another.

    `features` are the network's outputs before the head, anchors then positives (2N, D).
    `weights` come from the sampler, mean 1. `progress` is the share of training done. Draws that a
    loss makes come from `generator`, which depends on seed and step only.
    """

    anchors: Tensor
    positives: Tensor
    generator: torch.Generator
    progress: float = 0.0
    weights: Tensor | None = None
    features: Tensor | None = None

    def __len__(self) -> int:
        return len(self.anchors)


@dataclass(frozen=True, slots=True, eq=False)
class LossOutput:
    """The value to minimise; the distances it was made of (detached); figures to log."""

    loss: Tensor
    positive: Tensor
    negative: Tensor
    scalars: Mapping[str, Tensor] = field(default_factory=dict)


class PairLoss(Protocol):
    """A loss; what it remembers between steps is in its `state_dict`, as buffers.

    Implemented by `torch.nn.Module`s: the three methods below are theirs.
    """

    def __call__(self, pairs: Pairs) -> LossOutput:
        """Return the loss of `pairs`, and update what is remembered."""
        ...

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return everything that is remembered."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Take back what `state_dict` gave."""
        ...

    def to(self, device: torch.device) -> Any:
        """Move what is remembered to `device`."""
        ...


Options = TypeVar("Options")


@dataclass(frozen=True, slots=True)
class Method(Generic[Options]):
    """An entry of `METHODS`: the options a recipe may give, and how to build the loss from them.

    `heads` are the network heads whose descriptors the loss can take.
    """

    options: type[Options]
    build: Callable[[Options, Head, int], PairLoss]
    heads: tuple[Head, ...] = ("unit",)
