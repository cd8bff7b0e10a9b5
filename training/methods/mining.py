"""Hard negatives: for each pair of a batch, the most similar descriptor of another pair.

There are two kinds. `row_column` (HardNet, dynamic soft margin) compares an anchor with the
positives of other pairs, and a positive with their anchors: s(a_i, p_j) and s(a_j, p_i). `all_four`
(SOSNet, HyNet, SDGM) also compares anchors with anchors and positives with positives.

Candidates at or above a similarity limit (`ceiling`) are discarded, because two classes of a batch
may show the same physical point. A pair that loses all its candidates this way takes the *least*
similar one, which is finite and harmless; otherwise its arc cosine would be NaN.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Mining = Literal["row_column", "all_four"]

# Similarity of unit vectors that are 0.008 apart, the limit of HardNet.
DEFAULT_CEILING = 1.0 - 0.008**2 / 2.0
# Subtracted from discarded candidates; larger than any difference of two cosines.
_DISCARD = 10.0


def ceiling_from_distance(distance: float) -> float:
    """Return the similarity of unit vectors that are `distance` apart."""
    return 1.0 - distance * distance / 2.0


def ceiling_from_angle(angle: float) -> float:
    """Return the similarity of unit vectors at `angle` radians."""
    return math.cos(angle)


def hardest_similarity(
    anchors: Tensor,
    positives: Tensor,
    *,
    mining: Mining = "row_column",
    ceiling: float = DEFAULT_CEILING,
) -> Tensor:
    """Return the similarity of each pair's hardest negative, (N,), differentiable.

    `anchors` and `positives` are unit rows (N, D). Candidates more similar than `ceiling` are
    assumed to show the same point, and are left out. The gradient flows to the two descriptors that
    form each hardest negative.
    """
    across = _without_diagonal(anchors @ positives.T)
    if mining == "row_column":
        return _hardest(torch.cat([across, across.T], 1), ceiling)
    within = torch.maximum(
        _without_diagonal(anchors @ anchors.T), _without_diagonal(positives @ positives.T)
    )
    return _hardest(torch.maximum(torch.maximum(across, across.T), within), ceiling)


def _without_diagonal(similarity: Tensor) -> Tensor:
    return similarity - _DISCARD * torch.eye(len(similarity), device=similarity.device)


def _hardest(candidates: Tensor, ceiling: float) -> Tensor:
    allowed = candidates.detach() < ceiling
    best = torch.where(allowed, candidates, candidates - _DISCARD).amax(1)
    # Below -2 every candidate was discarded: fall back to the least similar one. The candidates
    # may be several matrices side by side, each with its own diagonal.
    own = torch.eye(len(candidates), dtype=torch.bool, device=candidates.device)
    on_diagonal = own.repeat(1, candidates.shape[1] // len(candidates))
    easiest = candidates.masked_fill(on_diagonal, _DISCARD).amin(1)
    return torch.where(best.detach() < -2.0, easiest, best)


class CodeTriplets(NamedTuple):
    """Mined triplets of binary codes, as indices into the rows [anchors; positives]."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor


def hamming(left: Tensor, right: Tensor) -> Tensor:
    """Return the Hamming distances between rows of -1/+1 codes, (N, M)."""
    return (left.shape[1] - left @ right.T) / 2


def signs(codes: Tensor) -> Tensor:
    """Return +1 where codes are above zero and -1 elsewhere, without gradient."""
    return torch.where(codes.detach() > 0, 1.0, -1.0).to(codes.dtype)


def hardest_codes(anchors: Tensor, positives: Tensor, *, minimum_bits: float) -> CodeTriplets:
    """Mine -1/+1 codes (N, K) by Hamming distance, like the dynamic soft margin.

    The triplet is (p_i, a_i, a_j) where another anchor is nearer to p_i than any other positive is
    to a_i, else (a_i, p_i, p_j). Candidates nearer than `minimum_bits` are discarded; a pair that
    loses all its candidates takes the farthest of them.
    """
    pairs = len(anchors)
    distance = hamming(anchors, positives)
    own = torch.eye(pairs, dtype=torch.bool, device=anchors.device)
    discarded = own | (distance < minimum_bits)
    legal = distance.masked_fill(discarded, float(anchors.shape[1] + 1))
    # If neither side has a candidate left, both take their farthest.
    is_lost = (discarded.all(1) & discarded.all(0))[:, None]
    others = distance.masked_fill(own, -1.0)
    by_row, row_choice = torch.where(is_lost, -others, legal).min(1)
    by_column, column_choice = torch.where(is_lost, -others.T, legal.T).min(1)
    index = torch.arange(pairs, device=anchors.device)
    from_positive = by_column < by_row
    return CodeTriplets(
        anchor=torch.where(from_positive, index + pairs, index),
        positive=torch.where(from_positive, index, index + pairs),
        negative=torch.where(from_positive, column_choice, row_choice + pairs),
    )


def random_partners(count: int, generator: torch.Generator) -> Tensor:
    """Return a random other pair for each of `count` pairs: a cyclic shift, so never itself."""
    shift = int(torch.randint(1, count, (1,), generator=generator))
    return (torch.arange(count) + shift) % count
