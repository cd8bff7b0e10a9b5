"""AdaSample's hinge triplets, angular (AHT) and Euclidean (HT), and its rule for positives.

The sampler (`training.samplers`) draws the positive of a class with p proportional to
d^(lambda / L_avg) and weights the pair by 1 / d (Eq. 13); the loss is max(0, t + d+^2 - d-^2)
(Eq. 14) of angles (Eq. 15), on HardNet's negatives. The two are independent here: this sampler
feeds any loss, and this loss takes pairs of any sampler.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.methods.contract import LossOutput, Pairs
from training.methods.losses import squared_hinge, weighted_mean
from training.methods.mining import Mining
from training.methods.triplets import Metric, mine
from training.networks.layers import Head
from training.runs.ranges import Distance, Positive


@dataclass(frozen=True, slots=True)
class AdaSampleOptions:
    """`[loss]` of AdaSample: `metric` is `angle` for AHT and `euclidean` for HT."""

    name: str = "adasample"
    metric: Metric = "angle"
    margin: Positive = 1.0
    mining: Mining = "row_column"
    threshold: Distance = 0.008


def exponent(lam: float, average_loss: Tensor, *, limit: float = 50.0) -> Tensor:
    """lambda / L_avg, kept in 0..limit; an infinite lambda stays infinite."""
    raw = lam / average_loss.clamp_min(1e-12)
    return raw if lam == float("inf") else raw.clamp(0.0, limit)


def positive_probabilities(distances: Tensor, power: float | Tensor) -> Tensor:
    """p_i proportional to d_i^power over the last axis, computed in log space (Eq. 13).

    `distances` (..., K); rows of an infinite power choose the farthest.
    """
    logits = torch.log(distances.clamp_min(1e-6).double())
    scale = torch.as_tensor(power, dtype=torch.float64)
    if bool(torch.isinf(scale)):
        farthest = distances.argmax(-1, keepdim=True)
        return torch.zeros_like(logits).scatter_(-1, farthest, 1.0)
    return torch.softmax(scale * logits, -1)


def pair_weights(distances: Tensor, *, floor: float = 0.05) -> Tensor:
    """Weights proportional to 1 / d with mean 1 over the batch (Eq. 13); d is floored."""
    inverse = 1.0 / distances.clamp_min(floor)
    return inverse / inverse.mean()


class HingeTriplet(nn.Module):
    """AHT or HT; remembers nothing."""

    def __init__(self, options: AdaSampleOptions) -> None:
        super().__init__()
        self.options = options

    def forward(self, pairs: Pairs) -> LossOutput:
        """Return the mean hinge of squared distances."""
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
    """Build the loss; `head` and `batch` change nothing here."""
    del head, batch
    return HingeTriplet(options)
