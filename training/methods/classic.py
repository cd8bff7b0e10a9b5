"""The losses of TFeat (Balntas et al., 2016) and L2-Net (Tian et al., 2017), as baselines.

TFeat: the hinge max(0, margin + d+ - d-) of a random negative; with `swap`, d- is the smaller of
its distances to the anchor and to the positive. L2-Net: the logarithm of the softmax of exp(2 - d)
over the rows and columns of the batch's distance matrix (E1), and the squared correlations of the
dimensions of the descriptor (E2). docs/research/methods.md lists the differences from the papers.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from training.methods.contract import LossOutput, Pairs
from training.methods.losses import euclidean, hinge, row_distance, weighted_mean
from training.methods.mining import random_partners
from training.networks.layers import Head
from training.recipes.options import NonNegative, Options, Positive


class TFeatOptions(Options):
    """`[loss]` of TFeat; `swap` is its anchor swap (TFeat-M*)."""

    name: Literal["tfeat"] = "tfeat"
    margin: Positive = 1.0
    swap: bool = True


class L2NetOptions(Options):
    """`[loss]` of L2-Net; `compactness` weighs the correlation of the dimensions (E2)."""

    name: Literal["l2net"] = "l2net"
    compactness: NonNegative = 1.0


class TFeatLoss(nn.Module):
    """Hinge of random triplets; remembers nothing."""

    def __init__(self, options: TFeatOptions) -> None:
        super().__init__()
        self.options = options

    def forward(self, pairs: Pairs) -> LossOutput:
        """Return the mean hinge of the pairs, each with one random negative."""
        partner = random_partners(len(pairs), pairs.generator).to(pairs.anchors.device)
        other = pairs.positives[partner]
        positive = row_distance(pairs.anchors, pairs.positives)
        negative = row_distance(pairs.anchors, other)
        if self.options.swap:
            negative = torch.minimum(negative, row_distance(pairs.positives, other))
        values = hinge(positive, negative, margin=self.options.margin)
        loss = weighted_mean(values, pairs.weights)
        scalars = {"active": (values.detach() > 0).float().mean()}
        return LossOutput(loss, positive.detach(), negative.detach(), scalars)


def relative_distance(distances: Tensor) -> Tensor:
    """Return E1 of each pair from the (N, N) distances of anchors to positives, (N,).

    Minus half of the logarithms of the softmax of 2 - d over the row and the column of the pair.
    """
    scores = 2.0 - distances
    own = scores.diagonal()
    return 0.5 * (scores.logsumexp(1) + scores.logsumexp(0)) - own


def correlation(rows: Tensor) -> Tensor:
    """Return half of the sum of squared correlations of different columns of (N, D) (E2)."""
    centred = rows - rows.mean(0)
    scaled = centred / centred.square().sum(0).add(1e-12).sqrt()
    correlations = scaled.T @ scaled
    return 0.5 * (correlations.square().sum() - correlations.diagonal().square().sum())


class L2NetLoss(nn.Module):
    """Relative distances and compactness of a batch; remembers nothing."""

    def __init__(self, options: L2NetOptions) -> None:
        super().__init__()
        self.options = options

    def forward(self, pairs: Pairs) -> LossOutput:
        """Return (E1 + E2) / N."""
        distances = euclidean(pairs.anchors @ pairs.positives.T)
        compact = (correlation(pairs.anchors) + correlation(pairs.positives)) / len(pairs)
        first = weighted_mean(relative_distance(distances), pairs.weights)
        own = torch.eye(len(pairs), dtype=torch.bool, device=distances.device)
        hardest = distances.detach().masked_fill(own, float("inf"))
        return LossOutput(
            first + self.options.compactness * compact,
            distances.detach().diagonal(),
            torch.minimum(hardest.amin(0), hardest.amin(1)),
            {"compactness": compact.detach()},
        )


def build_tfeat(options: TFeatOptions, head: Head, batch: int) -> TFeatLoss:
    """Build TFeat's loss; it does not depend on `head` or `batch`."""
    del head, batch
    return TFeatLoss(options)


def build_l2net(options: L2NetOptions, head: Head, batch: int) -> L2NetLoss:
    """Build L2-Net's loss; it does not depend on `head` or `batch`."""
    del head, batch
    return L2NetLoss(options)
