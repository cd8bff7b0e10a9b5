"""The CDF-based dynamic soft margin (Zhang and Rusinkiewicz, ICCV 2019).

The d+ - d- of a triplet is weighted (Eq. 4) by its rank among recent triplets (Eq. 5), which is
read from the cumulative distribution of d+ - d-: a moving histogram, to which each value is added
by linear interpolation between its two nearest bins. The gradient treats the weight as a constant.
Variants use the distribution of d+ or of d-, or assume a normal distribution.
"""

from __future__ import annotations

from typing import Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn

from training.methods.contract import LossOutput, Pairs
from training.methods.losses import weighted_mean
from training.methods.mining import Mining
from training.methods.triplets import mine
from training.networks.layers import Head
from training.recipes.options import (
    NonNegative,
    NonNegativeInt,
    Options,
    PositiveFraction,
    UnitDistance,
    option_problem,
)

Distribution = Literal["difference", "positive", "negative", "gaussian"]

# Limits of d+ - d-, and of one distance; a normal distribution has none.
_RANGES: dict[Distribution, tuple[float, float]] = {
    "difference": (-2.0, 2.0),
    "positive": (0.0, 2.0),
    "negative": (0.0, 2.0),
}


class CdfOptions(Options):
    """`[loss]` of the dynamic soft margin.

    `bins` is the number of histogram bins; 0 means half the batch size, but at least 64.
    `momentum` is the weight of the newest batch. `threshold` (a distance) and `threshold_bits` (for
    binary codes): candidate negatives that are nearer are assumed to show the same point.
    """

    name: Literal["cdf"] = "cdf"
    bins: NonNegativeInt = 0
    momentum: PositiveFraction = 0.1
    distribution: Distribution = "difference"
    mining: Mining = "row_column"
    threshold: UnitDistance = 0.008
    threshold_bits: NonNegative = 2.0

    @model_validator(mode="after")
    def _check_bins(self) -> Self:
        if self.bins == 1:
            raise option_problem("bins", "expected 0 or at least 2, found 1")
        return self


def allocate(values: Tensor, nodes: int, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Add each value to the two nearest of `nodes` evenly spaced bins from `low` to `high`.

    Return the histogram (sum 1) and the lower bin of each value. Double precision, so that rounding
    does not move a value that is close to a bin to the other side of it.
    """
    position = (values.detach().double() - low) * ((nodes - 1) / (high - low))
    position = position.clamp(0, nodes - 1)
    lower = position.floor().long()
    upper_share = position - lower
    histogram = torch.zeros(nodes, dtype=torch.float64, device=values.device)
    histogram.index_add_(0, lower, 1.0 - upper_share)
    histogram.index_add_(0, (lower + 1).clamp_max(nodes - 1), upper_share)
    return histogram / (histogram.sum() + 1e-6), lower


def _rate(seen: Tensor, momentum: float) -> Tensor:
    """Return 1 for the first batch and `momentum` later, without the host reading `seen`."""
    rate = torch.full((), momentum, dtype=torch.float64, device=seen.device)
    return rate.masked_fill(~seen, 1.0)


class MovingHistogram(nn.Module):
    """Moving average of the histograms of batches; the first batch sets it."""

    histogram: Tensor
    seen: Tensor

    def __init__(self, nodes: int, low: float, high: float, momentum: float) -> None:
        super().__init__()
        self.low, self.high, self.momentum = low, high, momentum
        self.register_buffer("histogram", torch.zeros(nodes, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def rank(self, values: Tensor) -> Tensor:
        """Update the histogram with `values`; return the CDF at the lower bin of each, 0..1."""
        batch, lower = allocate(values, len(self.histogram), self.low, self.high)
        self.histogram.lerp_(batch, _rate(self.seen, self.momentum))
        self.seen.fill_(value=True)
        cumulative = torch.cumsum(self.histogram / self.histogram.sum(), 0)
        return cumulative[lower].to(values.dtype)


class MovingGaussian(nn.Module):
    """Moving mean and population variance, for the variant with a normal distribution."""

    moments: Tensor
    seen: Tensor

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("moments", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def rank(self, values: Tensor) -> Tensor:
        """Update the moments with `values`; return the normal CDF at each."""
        exact = values.detach().double()
        batch = torch.stack([exact.mean(), exact.var(unbiased=False)])
        self.moments.lerp_(batch, _rate(self.seen, self.momentum))
        self.seen.fill_(value=True)
        mean, variance = self.moments
        scaled = (exact - mean) / variance.sqrt().clamp_min(1e-12)
        share: Tensor = torch.special.ndtr(scaled)
        return share.to(values.dtype)


class DynamicSoftMargin(nn.Module):
    """The loss mean(CDF(x) x), x = d+ - d-; remembers the distribution of x."""

    def __init__(self, options: CdfOptions, head: Head, batch: int) -> None:
        super().__init__()
        self.options, self.head = options, head
        nodes = options.bins or max(64, batch // 2)
        self.distribution: MovingHistogram | MovingGaussian
        if options.distribution == "gaussian":
            self.distribution = MovingGaussian(options.momentum)
        else:
            low, high = _RANGES[options.distribution]
            self.distribution = MovingHistogram(nodes, low, high, options.momentum)

    def forward(self, pairs: Pairs) -> LossOutput:
        """Return the weighted mean of d+ - d-."""
        threshold = self.options.threshold_bits if self.head == "binary" else self.options.threshold
        mined = mine(pairs, head=self.head, mining=self.options.mining, threshold=threshold)
        weights = self.weights(mined.hard_positive, mined.hard_negative)
        values = weights * (mined.positive - mined.negative)
        scalars = {"weight/mean": weights.mean(), "weight/max": weights.max()}
        loss = weighted_mean(values, pairs.weights)
        return LossOutput(loss, mined.hard_positive, mined.hard_negative, scalars)

    def weights(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the weights of triplets with these distances; harder triplets get larger ones."""
        if self.options.distribution == "positive":
            return self.distribution.rank(positive)
        if self.options.distribution == "negative":
            return 1.0 - self.distribution.rank(negative)
        return self.distribution.rank(positive - negative)


def build(options: CdfOptions, head: Head, batch: int) -> DynamicSoftMargin:
    """Build the loss for batches of `batch` pairs."""
    return DynamicSoftMargin(options, head, batch)
