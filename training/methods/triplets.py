"""The distances of the mined triplets of a batch, for unit vectors and for binary codes."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from training.methods.contract import Pairs
from training.methods.losses import (
    angle,
    code_distance,
    cosine_of_pairs,
    euclidean,
)
from training.methods.mining import (
    Mining,
    ceiling_from_distance,
    hardest_codes,
    hardest_similarity,
    signs,
)
from training.networks.layers import Head

Metric = Literal["euclidean", "angle"]


class Triplets(NamedTuple):
    """Distances d+ and d- with gradient, and without gradient for statistics and ranking.

    The latter are the same values for unit vectors, and those of the bits for binary codes.
    """

    positive: Tensor
    negative: Tensor
    hard_positive: Tensor
    hard_negative: Tensor


def mine(
    pairs: Pairs,
    *,
    head: Head,
    mining: Mining = "row_column",
    threshold: float = 0.008,
    metric: Metric = "euclidean",
) -> Triplets:
    """Mine `pairs`; `threshold` is a distance of unit vectors, or bits for a binary head."""
    if head == "binary":
        return _mine_codes(pairs, threshold)
    measure = euclidean if metric == "euclidean" else angle
    cosine = hardest_similarity(
        pairs.anchors, pairs.positives, mining=mining, ceiling=ceiling_from_distance(threshold)
    )
    positive = measure(cosine_of_pairs(pairs.anchors, pairs.positives))
    negative = measure(cosine)
    return Triplets(positive, negative, positive.detach(), negative.detach())


def _mine_codes(pairs: Pairs, minimum_bits: float) -> Triplets:
    hard = signs(torch.cat([pairs.anchors, pairs.positives]))
    chosen = hardest_codes(*hard.chunk(2), minimum_bits=minimum_bits)
    soft = torch.cat([pairs.anchors, pairs.positives])
    return Triplets(
        code_distance(soft[chosen.anchor], soft[chosen.positive]),
        code_distance(soft[chosen.anchor], soft[chosen.negative]),
        code_distance(hard[chosen.anchor], hard[chosen.positive]),
        code_distance(hard[chosen.anchor], hard[chosen.negative]),
    )
