"""What a loss receives, what it returns, and how it is registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from training.networks.layers import Head


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Descriptors of one batch, of all processes: anchor i and positive i show the same class.

    Every row is another class. `features` are the outputs of the network before its head, the
    anchors first, then the positives (2N, D). `weights` come from the sampler and have mean 1.
    `progress` is the fraction of training that is done. A loss draws random numbers from
    `generator`, which depends only on seed and step.
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
    """The value to minimise, the (detached) distances that it was computed from, figures to log."""

    loss: Tensor
    positive: Tensor
    negative: Tensor
    scalars: Mapping[str, Tensor] = field(default_factory=dict)


class PairLoss(Protocol):
    """A loss; everything that it remembers between steps is in its `state_dict`, as buffers.

    Losses are `torch.nn.Module`s, which have the last three methods already.
    """

    def __call__(self, pairs: Pairs) -> LossOutput:
        """Return the loss of `pairs` and update the state."""
        ...

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return everything that the loss remembers."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Restore what `state_dict` returned."""
        ...

    def to(self, device: torch.device) -> Any:
        """Move the state to `device`."""
        ...


AnyLoss = TypeVar("AnyLoss")


@dataclass(frozen=True, slots=True)
class Method(Generic[AnyLoss]):
    """An entry of `METHODS`: the options class of a loss, and how to build the loss.

    `build` receives the options, the network's head and the number of pairs in a batch. `heads` are
    the network heads that the loss can be used with.
    """

    options: type[AnyLoss]
    build: Callable[[AnyLoss, Head, int], PairLoss]
    heads: tuple[Head, ...] = ("unit",)
