"""What the papers compare with: static margin, softplus, hardest 1/k, HyNet's hybrid similarity."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.methods.contract import LossOutput, Pairs
from training.methods.losses import (
    cosine_of_pairs,
    hardest_fraction,
    hinge,
    hybrid,
    softplus,
    weighted_mean,
)
from training.methods.mining import Mining, ceiling_from_distance, hardest_similarity
from training.methods.triplets import mine
from training.networks.layers import Head
from training.runs.ranges import (
    Count,
    Distance,
    NotNegative,
    Positive,
)


@dataclass(frozen=True, slots=True)
class HardNetOptions:
    """`[loss]` of HardNet's static margin.

    `margin` is a distance; for binary codes one of 0..2 (0.25 is 32 bits of 256). `active_only`
    averages over the triplets that violate the margin, as HN-FRN does.
    """

    name: str = "hardnet"
    margin: Positive = 1.0
    mining: Mining = "row_column"
    threshold: Distance = 0.008
    threshold_bits: NotNegative = 2.0
    active_only: bool = False


@dataclass(frozen=True, slots=True)
class SoftplusOptions:
    """`[loss]` of the softplus margin."""

    name: str = "softplus"
    mining: Mining = "row_column"
    threshold: Distance = 0.008
    threshold_bits: NotNegative = 2.0


@dataclass(frozen=True, slots=True)
class HardestOptions:
    """`[loss]` of the hardest 1/`divisor` of the batch without a margin."""

    name: str = "hardest"
    divisor: Count = 8
    mining: Mining = "row_column"
    threshold: Distance = 0.008
    threshold_bits: NotNegative = 2.0


@dataclass(frozen=True, slots=True)
class HyNetOptions:
    """`[loss]` of HyNet: hybrid similarity, and a penalty on unequal lengths before the head."""

    name: str = "hynet"
    margin: Positive = 1.2
    alpha: NotNegative = 2.0
    length_penalty: NotNegative = 0.1
    mining: Mining = "all_four"
    threshold: Distance = 0.008


class Margin(nn.Module):
    """Static margin, softplus or hardest 1/k on mined triplets; remembers nothing."""

    def __init__(
        self, options: HardNetOptions | SoftplusOptions | HardestOptions, head: Head
    ) -> None:
        super().__init__()
        self.options, self.head = options, head

    def forward(self, pairs: Pairs) -> LossOutput:
        """Return the mean over the batch, or over the part that the loss keeps."""
        options = self.options
        bits = self.head == "binary"
        threshold = options.threshold_bits if bits else options.threshold
        mined = mine(pairs, head=self.head, mining=options.mining, threshold=threshold)
        given = torch.ones_like(mined.positive) if pairs.weights is None else pairs.weights
        hard_x = mined.hard_positive - mined.hard_negative
        scalars: dict[str, Tensor] = {}
        if isinstance(options, HardNetOptions):
            values = hinge(mined.positive, mined.negative, margin=options.margin)
            active = (values.detach() > 0).to(values.dtype)
            scalars["active"] = active.mean()
            loss = (given * values).mean()
            if options.active_only:
                loss = (given * values).sum() / active.sum().clamp_min(1.0)
        elif isinstance(options, SoftplusOptions):
            loss = (given * softplus(mined.positive, mined.negative)).mean()
        else:
            values = given * (mined.positive - mined.negative)
            loss = hardest_fraction(values, hard_x, divisor=options.divisor).mean()
        return LossOutput(loss, mined.hard_positive, mined.hard_negative, scalars)


class HyNetLoss(nn.Module):
    """HyNet's hinge of the hybrid distance; remembers nothing."""

    def __init__(self, options: HyNetOptions) -> None:
        super().__init__()
        self.options = options

    def forward(self, pairs: Pairs) -> LossOutput:
        """Return the mean hinge plus the length penalty."""
        options = self.options
        cosine = hardest_similarity(
            pairs.anchors,
            pairs.positives,
            mining=options.mining,
            ceiling=ceiling_from_distance(options.threshold),
        )
        positive = hybrid(cosine_of_pairs(pairs.anchors, pairs.positives), alpha=options.alpha)
        negative = hybrid(cosine, alpha=options.alpha)
        loss = weighted_mean(hinge(positive, negative, margin=options.margin), pairs.weights)
        scalars: dict[str, Tensor] = {}
        if pairs.features is not None and options.length_penalty:
            left, right = pairs.features.norm(dim=1).chunk(2)
            penalty = (left - right).square().mean()
            scalars["length_penalty"] = penalty.detach()
            loss = loss + options.length_penalty * penalty
        return LossOutput(loss, positive.detach(), negative.detach(), scalars)


def build(
    options: HardNetOptions | SoftplusOptions | HardestOptions, head: Head, batch: int
) -> Margin:
    """Build a margin loss for descriptors of `head`."""
    del batch
    return Margin(options, head)


def build_hynet(options: HyNetOptions, head: Head, batch: int) -> HyNetLoss:
    """Build HyNet's loss; `head` and `batch` change nothing here."""
    del head, batch
    return HyNetLoss(options)
