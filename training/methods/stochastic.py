"""The stochastic Siamese and Triplet losses (Serajeh et al.), and their plain counterparts.

Siamese (Eq. 5, 6): (d+ - m+ + th)^2 + (d- - (m+ + m) + th')^2. Triplet (Eq. 7, its sign corrected):
((d+ + th)^2 - (d- + th')^2 + m)^2. th and th' are +theta or -theta, drawn per pair and step.
Distances are Euclidean between network outputs without normalisation. Each positive gets one random
negative. The noise leaves the gradient of the Siamese loss unbiased, but not that of the triplet
loss, although the paper says so.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from training.methods.contract import LossOutput, Pairs
from training.methods.losses import (
    contrastive,
    row_distance,
    siamese,
    square_triplet,
    squared_hinge,
    weighted_mean,
)
from training.methods.mining import random_partners
from training.networks.layers import Head
from training.recipes.options import NonNegative, Options, Positive


class SiameseOptions(Options):
    """`[loss]` of the stochastic Siamese loss; `theta = 0` is the squared loss without noise."""

    name: Literal["stochastic_siamese"] = "stochastic_siamese"
    theta: NonNegative = 2.0
    positive_margin: NonNegative = 1.0
    margin: Positive = 2.0


class TripletOptions(Options):
    """`[loss]` of the stochastic triplet loss; `theta = 0` is the squared loss without noise.

    `shared_draw` uses one noise draw for both distances of a triplet.
    """

    name: Literal["stochastic_triplet"] = "stochastic_triplet"
    theta: NonNegative = 0.15
    margin: Positive = 1.0
    shared_draw: bool = False


class ContrastiveOptions(Options):
    """`[loss]` of the contrastive loss."""

    name: Literal["contrastive"] = "contrastive"
    margin: Positive = 3.0


class PlainTripletOptions(Options):
    """`[loss]` of the triplet hinge of squared distances, with random negatives."""

    name: Literal["plain_triplet"] = "plain_triplet"
    margin: Positive = 1.0


def draw_signs(count: int, theta: float, generator: torch.Generator, *, shared: bool) -> Tensor:
    """Draw (2, count) values of +theta or -theta; `shared` uses one draw for both rows."""
    drawn = torch.randint(0, 2, (1 if shared else 2, count), generator=generator)
    return (theta * (2.0 * drawn - 1.0)).expand(2, count)


class RandomNegatives(nn.Module):
    """A loss of pairs and random negatives; remembers nothing."""

    def __init__(
        self, options: SiameseOptions | TripletOptions | ContrastiveOptions | PlainTripletOptions
    ) -> None:
        super().__init__()
        self.options = options

    def forward(self, pairs: Pairs) -> LossOutput:
        """Return the mean loss of the pairs, each with one random negative."""
        partner = random_partners(len(pairs), pairs.generator).to(pairs.anchors.device)
        positive = row_distance(pairs.anchors, pairs.positives)
        negative = row_distance(pairs.anchors, pairs.positives[partner])
        values = self._values(positive, negative, pairs.generator)
        loss = weighted_mean(values, pairs.weights)
        return LossOutput(loss, positive.detach(), negative.detach())

    def _values(self, positive: Tensor, negative: Tensor, generator: torch.Generator) -> Tensor:
        options = self.options
        if isinstance(options, ContrastiveOptions):
            return contrastive(positive, negative, margin=options.margin)
        if isinstance(options, PlainTripletOptions):
            return squared_hinge(positive, negative, margin=options.margin)
        shared = isinstance(options, TripletOptions) and options.shared_draw
        noise = draw_signs(len(positive), options.theta, generator, shared=shared).to(positive)
        if isinstance(options, TripletOptions):
            return square_triplet(positive, negative, margin=options.margin, noise=noise)
        return siamese(
            positive,
            negative,
            positive_margin=options.positive_margin,
            margin=options.margin,
            noise=noise,
        )


def build(
    options: SiameseOptions | TripletOptions | ContrastiveOptions | PlainTripletOptions,
    head: Head,
    batch: int,
) -> RandomNegatives:
    """Build the loss; it does not depend on `head` or `batch`."""
    del head, batch
    return RandomNegatives(options)
