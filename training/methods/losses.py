"""Distances, and losses of distances, as pure functions that return one value per triplet.

`positive` and `negative` are the distances d+ and d- of a batch of triplets, (N,).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# Keeps acos and its derivative finite; a clamped pair has no gradient.
_COSINE_LIMIT = 1.0 - 1e-5


def cosine_of_pairs(left: Tensor, right: Tensor) -> Tensor:
    """Return the inner products of matching rows, (N,)."""
    return (left * right).sum(1)


def angle(cosine: Tensor) -> Tensor:
    """Return the angle in radians of a cosine, which is kept 1e-5 away from -1 and 1."""
    return torch.acos(cosine.clamp(-_COSINE_LIMIT, _COSINE_LIMIT))


def euclidean(cosine: Tensor) -> Tensor:
    """Return the distance of unit vectors with that cosine; 1e-6 keeps the root differentiable."""
    return torch.sqrt(2.0 * (1.0 - cosine + 1e-6).clamp_min(1e-12))


def row_distance(left: Tensor, right: Tensor) -> Tensor:
    """Return the Euclidean distance of matching rows of any length; adds 1e-8 under the root."""
    return torch.sqrt((left - right).square().sum(1) + 1e-8)


def code_distance(left: Tensor, right: Tensor) -> Tensor:
    """Return the distance 0..2 of codes in (-1, 1): mean(1 - x y), twice Hamming / K for -1/+1."""
    return (1.0 - left * right).mean(1)


def hinge(positive: Tensor, negative: Tensor, *, margin: float) -> Tensor:
    """Return HardNet's triplet loss: max(0, margin + d+ - d-)."""
    return functional.relu(margin + positive - negative)


def squared_hinge(positive: Tensor, negative: Tensor, *, margin: float) -> Tensor:
    """Return the triplet loss of squared distances: max(0, margin + d+^2 - d-^2)."""
    return functional.relu(margin + positive.square() - negative.square())


def softplus(positive: Tensor, negative: Tensor) -> Tensor:
    """Return log(1 + exp(d+ - d-))."""
    return functional.softplus(positive - negative)


def contrastive(positive: Tensor, negative: Tensor, *, margin: float) -> Tensor:
    """Return d+^2 + max(margin - d-, 0)^2."""
    return positive.square() + functional.relu(margin - negative).square()


def siamese(
    positive: Tensor,
    negative: Tensor,
    *,
    positive_margin: float,
    margin: float,
    noise: Tensor,
) -> Tensor:
    """Return the squared Siamese loss with noise on the targets (Serajeh et al.).

    (d+ - m+ + noise[0])^2 + (d- - (m+ + m) + noise[1])^2, `noise` (2, N).
    """
    near = (positive - positive_margin + noise[0]).square()
    far = (negative - (positive_margin + margin) + noise[1]).square()
    return near + far


def square_triplet(positive: Tensor, negative: Tensor, *, margin: float, noise: Tensor) -> Tensor:
    """Return the squared triplet loss with noise: ((d+ + th)^2 - (d- + th')^2 + m)^2.

    The paper prints -m, which would push positives beyond negatives and contradicts its hinge form;
    it must be +m.
    """
    difference = (positive + noise[0]).square() - (negative + noise[1]).square()
    return (difference + margin).square()


def hybrid(cosine: Tensor, *, alpha: float) -> Tensor:
    """Return HyNet's hybrid distance of a cosine s: euclidean(s) + alpha (1 - s)."""
    return euclidean(cosine) + alpha * (1.0 - cosine)


def hardest_fraction(values: Tensor, hardness: Tensor, *, divisor: int) -> Tensor:
    """Return the `values` where `hardness` is among the N / divisor largest."""
    keep = max(1, len(values) // divisor)
    return values[torch.topk(hardness.detach(), keep).indices]


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of `values`, each multiplied by its weight if there are weights."""
    return values.mean() if weights is None else (values * weights).mean()
