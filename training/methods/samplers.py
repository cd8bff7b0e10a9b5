"""Which pairs a step learns from.

A sampler asks for `candidates` patches of each class and makes the pair: uniformly, two at random;
AdaSample, by distances under the network as it is now. Draws depend on (seed, step) alone. What
AdaSample remembers, the average loss, is a buffer and part of every checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from training.methods.adasample import exponent, pair_weights, positive_probabilities
from training.methods.contract import LossOutput
from training.methods.losses import angle, row_distance
from training.networks.layers import DescriptorNet
from training.runs.ranges import (
    Positive,
    Range,
    Rate,
    Share,
)
from training.runtime import distributed

Order = Literal["replacement", "epoch", "neighbours", "mixed"]


@dataclass(frozen=True, slots=True)
class UniformOptions:
    """`[sampler]` that takes two patches of a class at random.

    `order` draws classes anew for every batch, or goes through all of them in shuffled epochs, or
    draws them `neighbours` at a time from one image: what a service must tell apart. `mixed` draws
    half of a batch so, and the other half from all images.
    """

    name: str = "uniform"
    order: Order = "replacement"
    neighbours: Annotated[int, Range(2)] = 64


@dataclass(frozen=True, slots=True)
class AdaSampleSamplerOptions:
    """`[sampler]` of AdaSample.

    `lam` is the paper's lambda; `inf` takes the hardest positive. `candidates` patches per class
    are made by turning copies by up to `max_turn_deg` where a class has fewer. `rate` is that of
    the average loss. Positives are uniform until `start` of training is done. `weighted = false`
    leaves out the weights 1 / d; with `lam = 0` that is HardNet's sampling.
    """

    name: str = "adasample"
    lam: Annotated[float, Range(0.0, infinite=True)] = 10.0
    candidates: Annotated[int, Range(2)] = 5
    max_turn_deg: Annotated[float, Range(0.0, 180.0)] = 15.0
    rate: Rate = 0.01
    margin: Positive = 1.0
    start: Share = 0.0
    weighted: bool = True
    metric: Literal["angle", "euclidean"] = "angle"
    order: Order = "replacement"
    neighbours: Annotated[int, Range(2)] = 64


SamplerOptions = UniformOptions | AdaSampleSamplerOptions


class Chosen(NamedTuple):
    """Pairs of this rank, (n, 2, 1, S, S), and the weights of all ranks' pairs."""

    patches: Tensor
    weights: Tensor | None


class Sampler(Protocol):
    """Makes the pairs of a batch; what it remembers is in its `state_dict`."""

    @property
    def candidates(self) -> int:
        """How many patches of a class it wants to see."""
        ...

    def choose(
        self, net: DescriptorNet, patches: Tensor, generator: torch.Generator, progress: float
    ) -> Chosen:
        """Make a pair of each row of `patches` (n, candidates, 1, S, S)."""
        ...

    def observe(self, output: LossOutput) -> None:
        """Learn how hard the last batch was."""
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


class Uniform(nn.Module):
    """Two patches of the class as they come; remembers nothing."""

    candidates = 2

    def __init__(self, options: UniformOptions) -> None:
        super().__init__()
        self.options = options

    def choose(
        self, net: DescriptorNet, patches: Tensor, generator: torch.Generator, progress: float
    ) -> Chosen:
        """Return `patches` themselves: the batch already drew two at random."""
        del net, generator, progress
        return Chosen(patches, None)

    def observe(self, output: LossOutput) -> None:
        """Nothing to learn."""


class AdaSample(nn.Module):
    """Positives drawn with p proportional to d^(lambda / L_avg), weighted by 1 / d (Eq. 13)."""

    average_loss: Tensor

    def __init__(self, options: AdaSampleSamplerOptions) -> None:
        super().__init__()
        self.options = options
        self.candidates = options.candidates
        # The loss when d+ equals d-: what an untrained network has.
        self.register_buffer("average_loss", torch.tensor(options.margin))

    @torch.no_grad()
    def choose(
        self, net: DescriptorNet, patches: Tensor, generator: torch.Generator, progress: float
    ) -> Chosen:
        """Take the first candidate (they come shuffled) as anchor, draw its positive."""
        rows, count = patches.shape[:2]
        was_training = net.training
        net.eval()
        described = net(patches.flatten(0, 1)).reshape(rows, count, -1)
        net.train(was_training)
        distances = self._distances(described).cpu()
        power = self._power(progress)
        chances = positive_probabilities(distances, power)
        # Drawn for the whole batch, so that a rank's choice does not depend on how many there are.
        drawn = torch.rand(rows * distributed.world_size(), 1, generator=generator).double()
        drawn = drawn[distributed.own_slice(len(drawn))]
        positive = (chances.cumsum(1) < drawn * chances.sum(1, keepdim=True)).sum(1)
        index = torch.arange(rows)
        pairs = torch.stack([patches[:, 0], patches[index, 1 + positive]], 1)
        if not self.options.weighted or progress < self.options.start:
            return Chosen(pairs, None)
        chosen = distributed.gather(distances[index, positive].to(patches.device))
        return Chosen(pairs, pair_weights(chosen))

    @torch.no_grad()
    def observe(self, output: LossOutput) -> None:
        """Move the average of the (unweighted) hinge of the batch's distances."""
        hinge = self.options.margin + output.positive.square() - output.negative.square()
        self.average_loss.lerp_(hinge.clamp_min(0).mean().to(self.average_loss), self.options.rate)

    def _power(self, progress: float) -> Tensor:
        if progress < self.options.start:
            return torch.zeros(())
        return exponent(self.options.lam, self.average_loss.cpu())

    def _distances(self, described: Tensor) -> Tensor:
        anchors, others = described[:, :1], described[:, 1:]
        if self.options.metric == "angle":
            return angle((anchors * others).sum(2))
        flat = row_distance(anchors.expand_as(others).flatten(0, 1), others.flatten(0, 1))
        return flat.reshape(others.shape[:2])


Options = TypeVar("Options")


@dataclass(frozen=True, slots=True)
class SamplerEntry(Generic[Options]):
    """An entry of `SAMPLERS`: the options a recipe may give, and how to build from them."""

    options: type[Options]
    build: Callable[[Options], Sampler]


SAMPLERS: dict[str, SamplerEntry[Any]] = {
    "uniform": SamplerEntry(UniformOptions, Uniform),
    "adasample": SamplerEntry(AdaSampleSamplerOptions, AdaSample),
}
