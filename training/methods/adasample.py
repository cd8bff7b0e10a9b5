"""AdaSample (Zhang et al., 2019): its sampler, its loss and the rules of both.

The sampler draws the positive of a class with probability proportional to d^(lambda / L_avg), where
d is the distance to the anchor under the current network and L_avg the moving average of the loss,
and weights the pair by 1 / d (Eq. 13). The loss is max(0, t + d+^2 - d-^2) (Eq. 14), where d is an
angle (Eq. 15), with the negatives of HardNet. The two can be used separately: the sampler works
with any loss, and the loss with pairs of any sampler.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from training.methods.contract import LossOutput, Pairs
from training.methods.losses import angle, row_distance, squared_hinge, weighted_mean
from training.methods.mining import Mining
from training.methods.samplers import SamplerOptions, Selection
from training.methods.triplets import Metric, mine
from training.networks.layers import DescriptorNet, Head
from training.recipes.options import (
    AtLeastTwo,
    Degrees,
    Fraction,
    Options,
    Positive,
    PositiveFraction,
    UnitDistance,
    option_problem,
)
from training.runtime import distributed


class AdaSampleOptions(Options):
    """`[loss]` of AdaSample.

    `metric` is `angle` (the paper's AHT) or `euclidean` (its HT). `threshold` is a Euclidean
    distance: candidate negatives that are nearer are assumed to show the same point.
    """

    name: Literal["adasample"] = "adasample"
    metric: Metric = "angle"
    margin: Positive = 1.0
    mining: Mining = "row_column"
    threshold: UnitDistance = 0.008


class AdaSampleSamplerOptions(SamplerOptions):
    """`[sampler]` of AdaSample.

    `lam` is the lambda of the paper; `inf` always takes the hardest positive. A class with fewer
    than `candidates` patches is filled up with copies rotated by up to `max_turn_deg`. `rate` is
    the rate of the moving average of the loss, which is the hinge with `margin` and `metric`.
    Positives are drawn uniformly until the fraction `start` of training is done.
    `weighted = false` omits the weights 1 / d; with `lam = 0` that is the sampling of HardNet.
    """

    name: Literal["adasample"] = "adasample"
    lam: Annotated[float, Field(ge=0, allow_inf_nan=True)] = 10.0
    candidates: AtLeastTwo = 5
    max_turn_deg: Degrees = 15.0
    rate: PositiveFraction = 0.01
    margin: Positive = 1.0
    start: Fraction = 0.0
    weighted: bool = True
    metric: Metric = "angle"

    @property
    def copy_rotation_deg(self) -> float:
        """Largest rotation of a copied patch, for classes with fewer patches than candidates."""
        return self.max_turn_deg

    def check_against(self, loss: Options, head: Head) -> None:
        """Refuse heads without the distance of `metric`, and a loss with another hinge.

        Raises:
            PydanticCustomError: made by `option_problem`.
        """
        if head == "binary":
            raise option_problem(
                "name", "adasample cannot be used with a binary head; set it to 'uniform'"
            )
        if head == "linear" and self.metric == "angle":
            raise option_problem(
                "metric", "descriptors of a linear head have no angle; set it to 'euclidean'"
            )
        if not isinstance(loss, AdaSampleOptions):
            return
        # The exponent is computed from the average of the loss that is minimised.
        for key in ("metric", "margin"):
            own, other = getattr(self, key), getattr(loss, key)
            if own != other:
                raise option_problem(
                    key, f"{own!r} differs from loss.{key}, which is {other!r}; make them equal"
                )


def exponent(lam: float, average_loss: Tensor, *, limit: float = 50.0) -> Tensor:
    """Return lambda / L_avg limited to 0..limit; an infinite lambda stays infinite."""
    raw = lam / average_loss.clamp_min(1e-12)
    return raw if lam == float("inf") else raw.clamp(0.0, limit)


def positive_probabilities(distances: Tensor, power: float | Tensor) -> Tensor:
    """Return p_i proportional to d_i^power over the last axis of `distances` (..., K) (Eq. 13).

    Computed in log space. An infinite power gives the farthest candidate probability 1.
    """
    logits = torch.log(distances.clamp_min(1e-6).double())
    if not isinstance(power, Tensor) and math.isinf(power):
        farthest = distances.argmax(-1, keepdim=True)
        return torch.zeros_like(logits).scatter_(-1, farthest, 1.0)
    return torch.softmax(power * logits, -1)


def pair_weights(distances: Tensor, *, floor: float = 0.05) -> Tensor:
    """Return weights proportional to 1 / max(d, floor), with mean 1 over the batch (Eq. 13)."""
    inverse = 1.0 / distances.clamp_min(floor)
    return inverse / inverse.mean()


class HingeTriplet(nn.Module):
    """The loss: a hinge of squared angles or distances; remembers nothing."""

    def __init__(self, options: AdaSampleOptions) -> None:
        super().__init__()
        self.options = options

    def forward(self, pairs: Pairs) -> LossOutput:
        """Return the mean hinge of the batch."""
        options = self.options
        mined = mine(
            pairs,
            head="unit",
            mining=options.mining,
            threshold=options.threshold,
            metric=options.metric,
        )
        values = squared_hinge(mined.positive, mined.negative, margin=options.margin)
        active = (values.detach() > 0).float().mean()
        loss = weighted_mean(values, pairs.weights)
        return LossOutput(loss, mined.hard_positive, mined.hard_negative, {"active": active})


def build(options: AdaSampleOptions, head: Head, batch: int) -> HingeTriplet:
    """Build the loss; it does not depend on `head` or `batch`."""
    del head, batch
    return HingeTriplet(options)


class AdaSample(nn.Module):
    """The sampler; remembers the moving average of the loss."""

    average_loss: Tensor

    def __init__(self, options: AdaSampleSamplerOptions) -> None:
        super().__init__()
        self.options = options
        self.candidates = options.candidates
        # The loss of an untrained network, for which d+ equals d-.
        self.register_buffer("average_loss", torch.tensor(options.margin))

    @torch.no_grad()
    def select(
        self, net: DescriptorNet, patches: Tensor, generator: torch.Generator, progress: float
    ) -> Selection:
        """Take the first candidate as the anchor (they come shuffled) and draw its positive."""
        rows, count = patches.shape[:2]
        power = self._power(progress)
        is_weighted = self.options.weighted and progress >= self.options.start
        distances = None
        probabilities = torch.full((rows, count - 1), 1 / (count - 1), dtype=torch.float64)
        # Uniform draws without weights do not depend on the network: its pass is saved.
        if is_weighted or isinstance(power, Tensor) or power != 0:
            distances = self._distances(_describe(net, patches))
            probabilities = positive_probabilities(distances, power)
        # Drawn for the batch of all processes, so that the number of processes changes nothing.
        drawn = torch.rand(rows * distributed.world_size(), 1, generator=generator).double()
        drawn = drawn[distributed.own_slice(len(drawn))].to(patches.device)
        probabilities = probabilities.to(patches.device)
        limit = drawn * probabilities.sum(1, keepdim=True)
        positive = (probabilities.cumsum(1) < limit).sum(1)
        index = torch.arange(rows, device=patches.device)
        pairs = torch.stack([patches[:, 0], patches[index, 1 + positive]], 1)
        if distances is None or not is_weighted:
            return Selection(pairs, None)
        selected = distributed.gather(distances[index, positive])
        return Selection(pairs, pair_weights(selected))

    @torch.no_grad()
    def observe(self, output: LossOutput) -> None:
        """Update the moving average with the unweighted hinge of the batch."""
        hinge = self.options.margin + output.positive.square() - output.negative.square()
        self.average_loss.lerp_(hinge.clamp_min(0).mean().to(self.average_loss), self.options.rate)

    def _power(self, progress: float) -> float | Tensor:
        if progress < self.options.start or self.options.lam == 0:
            return 0.0
        if math.isinf(self.options.lam):
            return math.inf
        return exponent(self.options.lam, self.average_loss)

    def _distances(self, descriptors: Tensor) -> Tensor:
        anchors, others = descriptors[:, :1], descriptors[:, 1:]
        if self.options.metric == "angle":
            return angle((anchors * others).sum(2))
        flat = row_distance(anchors.expand_as(others).flatten(0, 1), others.flatten(0, 1))
        return flat.reshape(others.shape[:2])


def _describe(net: DescriptorNet, patches: Tensor) -> Tensor:
    """Describe (n, K, 1, S, S) in evaluation mode, (n, K, dim)."""
    was_training = net.training
    net.eval()
    descriptors: Tensor = net(patches.flatten(0, 1)).reshape(*patches.shape[:2], -1)
    net.train(was_training)
    return descriptors
