"""Pure functions: distances, and losses of distances. One value per triplet unless said.

`positive` and `negative` are the distances d+ and d- of a batch of triplets, (N,).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# Keeps acos and its derivative finite; a clamped pair has no gradient.
_COSINE_LIMIT = 1.0 - 1e-5


def cosine_of_pairs(left: Tensor, right: Tensor) -> Tensor:
    """Inner products of matching rows, (N,)."""
    return (left * right).sum(1)


def angle(cosine: Tensor) -> Tensor:
    """Angle in radians of a cosine kept 1e-5 away from -1 and 1."""
    return torch.acos(cosine.clamp(-_COSINE_LIMIT, _COSINE_LIMIT))


def euclidean(cosine: Tensor) -> Tensor:
    """Distance of unit vectors with that cosine; 1e-6 keeps the root differentiable."""
    return torch.sqrt(2.0 * (1.0 - cosine + 1e-6).clamp_min(1e-12))


def row_distance(left: Tensor, right: Tensor) -> Tensor:
    """Euclidean distance of matching rows of any length; 1e-8 under the root."""
    return torch.sqrt((left - right).square().sum(1) + 1e-8)


def code_distance(left: Tensor, right: Tensor) -> Tensor:
    """Distance of codes in (-1, 1): sum(1 - x y) / K, 0..2; twice Hamming / K for hard codes."""
    return (1.0 - left * right).mean(1)


def hinge(positive: Tensor, negative: Tensor, *, margin: float) -> Tensor:
    """HardNet's triplet: max(0, margin + d+ - d-)."""
    return functional.relu(margin + positive - negative)


def squared_hinge(positive: Tensor, negative: Tensor, *, margin: float) -> Tensor:
    """Triplet of squared distances: max(0, margin + d+^2 - d-^2) (AdaSample, plain triplet)."""
    return functional.relu(margin + positive.square() - negative.square())


def softplus(positive: Tensor, negative: Tensor) -> Tensor:
    """log(1 + exp(d+ - d-))."""
    return functional.softplus(positive - negative)


def contrastive(positive: Tensor, negative: Tensor, *, margin: float) -> Tensor:
    """d+^2 + max(margin - d-, 0)^2."""
    return positive.square() + functional.relu(margin - negative).square()


def siamese(
    positive: Tensor,
    negative: Tensor,
    *,
    positive_margin: float,
    margin: float,
    noise: Tensor,
) -> Tensor:
    """Squared Siamese loss with noise on the targets (Serajeh et al.).

    (d+ - m+ + noise[0])^2 + (d- - (m+ + m) + noise[1])^2, `noise` (2, N).
    """
    near = (positive - positive_margin + noise[0]).square()
    far = (negative - (positive_margin + margin) + noise[1]).square()
    return near + far


def square_triplet(positive: Tensor, negative: Tensor, *, margin: float, noise: Tensor) -> Tensor:
    """Squared triplet loss with noise on the distances: ((d+ + th)^2 - (d- + th')^2 + m)^2.

    The paper prints -m, which would drive positives beyond negatives and contradicts its hinge
    form; +m is meant.
    """
    difference = (positive + noise[0]).square() - (negative + noise[1]).square()
    return (difference + margin).square()


def hybrid(cosine: Tensor, *, alpha: float) -> Tensor:
    """HyNet's hybrid distance of a cosine: l + alpha (1 - s)."""
    return euclidean(cosine) + alpha * (1.0 - cosine)


def hardest_fraction(values: Tensor, order: Tensor, *, divisor: int) -> Tensor:
    """Of `values`, those at the N / divisor largest of `order`."""
    keep = max(1, len(values) // divisor)
    return values[torch.topk(order.detach(), keep).indices]


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Mean of `values`, each times its weight if there are weights."""
    return values.mean() if weights is None else (values * weights).mean()
