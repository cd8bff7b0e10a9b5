"""A loss as a plug-in: a margin between the cosines of the pair and of its hardest negative."""

from typing import Literal

import torch
from torch import nn

from training.methods import LossOutput, Method, Pairs
from training.methods.losses import cosine_of_pairs, weighted_mean
from training.methods.mining import hardest_similarity
from training.networks.layers import Head
from training.recipes.options import Options, Positive


class CosineMarginOptions(Options):
    """`[loss]`: `margin` is a difference of cosines."""

    name: Literal["cosine_margin"] = "cosine_margin"
    margin: Positive = 0.5


class CosineMargin(nn.Module):
    """max(0, margin - s+ + s-), averaged over the batch."""

    def __init__(self, options: CosineMarginOptions, head: Head, batch: int) -> None:
        super().__init__()
        self.options = options

    def forward(self, pairs: Pairs) -> LossOutput:
        """Return the loss, and the distances 1 - s for the log."""
        near = cosine_of_pairs(pairs.anchors, pairs.positives)
        far = hardest_similarity(pairs.anchors, pairs.positives, mining="row_column", ceiling=0.99)
        values = torch.relu(self.options.margin - near + far)
        loss = weighted_mean(values, pairs.weights)
        return LossOutput(loss, 1 - near.detach(), 1 - far.detach())


METHOD = Method(CosineMarginOptions, CosineMargin, heads=("unit",))
