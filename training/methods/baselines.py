"""Baselines of the papers: static margin, softplus, hardest 1/k, HyNet, SOSNet."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from training.methods.contract import LossOutput, Pairs
from training.methods.losses import (
    cosine_of_pairs,
    euclidean,
    hardest_fraction,
    hinge,
    hybrid,
    softplus,
    weighted_mean,
)
from training.methods.mining import Mining, ceiling_from_distance, hardest_similarity
from training.methods.triplets import mine
from training.networks.layers import Head
from training.recipes.options import NonNegative, Options, Positive, PositiveInt, UnitDistance


class HardNetOptions(Options):
    """`[loss]` of HardNet's static margin.

    `margin` is a distance. For binary codes distances are 0..2, so 0.25 is 32 bits of 256.
    `threshold` (a distance) and `threshold_bits` (for binary codes): candidate negatives that are
    nearer are assumed to show the same point. `active_only` averages over the triplets that
    violate the margin, as HN-FRN does.
    """

    name: Literal["hardnet"] = "hardnet"
    margin: Positive = 1.0
    mining: Mining = "row_column"
    threshold: UnitDistance = 0.008
    threshold_bits: NonNegative = 2.0
    active_only: bool = False


class SoftplusOptions(Options):
    """`[loss]` of the softplus margin."""

    name: Literal["softplus"] = "softplus"
    mining: Mining = "row_column"
    threshold: UnitDistance = 0.008
    threshold_bits: NonNegative = 2.0


class HardestOptions(Options):
    """`[loss]` without a margin, of the hardest 1/`divisor` of the batch."""

    name: Literal["hardest"] = "hardest"
    divisor: PositiveInt = 8
    mining: Mining = "row_column"
    threshold: UnitDistance = 0.008
    threshold_bits: NonNegative = 2.0


class HyNetOptions(Options):
    """`[loss]` of HyNet: hinge of its hybrid similarity.

    `length_penalty` weighs the squared difference in length of a pair's features before the head.
    """

    name: Literal["hynet"] = "hynet"
    margin: Positive = 1.2
    alpha: NonNegative = 2.0
    length_penalty: NonNegative = 0.1
    mining: Mining = "all_four"
    threshold: UnitDistance = 0.008


class SosNetOptions(Options):
    """`[loss]` of SOSNet: squared hinge plus second-order similarity.

    `neighbours` is the number of nearest descriptors whose distances to an anchor should equal
    those to its positive; `second_order` weighs that term.
    """

    name: Literal["sosnet"] = "sosnet"
    margin: Positive = 1.0
    neighbours: PositiveInt = 8
    second_order: NonNegative = 1.0
    mining: Mining = "all_four"
    threshold: UnitDistance = 0.008


class Margin(nn.Module):
    """Static margin, softplus or hardest 1/k of mined triplets; remembers nothing."""

    def __init__(
        self, options: HardNetOptions | SoftplusOptions | HardestOptions, head: Head
    ) -> None:
        super().__init__()
        self.options, self.head = options, head

    def forward(self, pairs: Pairs) -> LossOutput:
        """Return the mean over the batch, or over the part of it that the options select."""
        options = self.options
        is_binary = self.head == "binary"
        threshold = options.threshold_bits if is_binary else options.threshold
        mined = mine(pairs, head=self.head, mining=options.mining, threshold=threshold)
        weights = torch.ones_like(mined.positive) if pairs.weights is None else pairs.weights
        scalars: dict[str, Tensor] = {}
        if isinstance(options, HardNetOptions):
            values = hinge(mined.positive, mined.negative, margin=options.margin)
            active = (values.detach() > 0).to(values.dtype)
            scalars["active"] = active.mean()
            loss = (weights * values).mean()
            if options.active_only:
                loss = (weights * values).sum() / active.sum().clamp_min(1.0)
        elif isinstance(options, SoftplusOptions):
            loss = (weights * softplus(mined.positive, mined.negative)).mean()
        else:
            values = weights * (mined.positive - mined.negative)
            hardness = mined.hard_positive - mined.hard_negative
            loss = hardest_fraction(values, hardness, divisor=options.divisor).mean()
        return LossOutput(loss, mined.hard_positive, mined.hard_negative, scalars)


class HyNetLoss(nn.Module):
    """Hinge of HyNet's hybrid distance; remembers nothing."""

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


def second_order_distance(anchors: Tensor, positives: Tensor, *, neighbours: int) -> Tensor:
    """Return how much the distances of each pair to its neighbours differ, (N,).

    Row i is the root of the sum of (d(a_i, a_j) - d(p_i, p_j))^2 over all j that are among the
    `neighbours` nearest anchors of a_i or the nearest positives of p_i.
    """
    rows = len(anchors)
    own = torch.eye(rows, dtype=torch.bool, device=anchors.device)
    # The diagonal has distance 0, at which the root has no derivative.
    near = euclidean((anchors @ anchors.T).masked_fill(own, 0.0))
    far = euclidean((positives @ positives.T).masked_fill(own, 0.0))
    count = min(neighbours, rows - 1)
    chosen = torch.zeros_like(own)
    for distance in (near, far):
        nearest = distance.detach().masked_fill(own, float("inf")).topk(count, largest=False)
        chosen.scatter_(1, nearest.indices, value=True)
    return torch.sqrt(((near - far).square() * chosen).sum(1) + 1e-8)


class SosNetLoss(nn.Module):
    """SOSNet: squared hinge of mined triplets, and second-order similarity; remembers nothing."""

    def __init__(self, options: SosNetOptions) -> None:
        super().__init__()
        self.options = options

    def forward(self, pairs: Pairs) -> LossOutput:
        """Return the mean of both terms."""
        options = self.options
        mined = mine(pairs, head="unit", mining=options.mining, threshold=options.threshold)
        first = hinge(mined.positive, mined.negative, margin=options.margin).square()
        second = second_order_distance(
            pairs.anchors, pairs.positives, neighbours=options.neighbours
        )
        loss = weighted_mean(first + options.second_order * second, pairs.weights)
        scalars = {"second_order": second.detach().mean()}
        return LossOutput(loss, mined.hard_positive, mined.hard_negative, scalars)


def build(
    options: HardNetOptions | SoftplusOptions | HardestOptions, head: Head, batch: int
) -> Margin:
    """Build the loss for descriptors of `head`; it does not depend on `batch`."""
    del batch
    return Margin(options, head)


def build_hynet(options: HyNetOptions, head: Head, batch: int) -> HyNetLoss:
    """Build HyNet's loss; it does not depend on `head` or `batch`."""
    del head, batch
    return HyNetLoss(options)


def build_sosnet(options: SosNetOptions, head: Head, batch: int) -> SosNetLoss:
    """Build SOSNet's loss; it does not depend on `head` or `batch`."""
    del head, batch
    return SosNetLoss(options)
