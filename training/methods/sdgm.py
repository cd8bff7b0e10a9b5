"""SDGM: the gradient of the angular triplet loss, modulated by statistics of recent batches.

The parts of the paper, in its order: angular distance (Eq. 3), auto-focus self weights (Eq. 9, 10),
the probabilistic margin with a CDF above it (Eq. 11), power adjustment (Eq. 12, 13), statistics by
exponential moving average (Eq. 14), and the pseudo loss (Eq. 15), whose gradient is the modulated
one. Where the paper and its released code disagree, docs/research/methods.md says which one is
followed.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from training.methods.contract import LossOutput, Pairs
from training.methods.losses import angle, cosine_of_pairs
from training.methods.mining import Mining, ceiling_from_angle, hardest_similarity
from training.networks.layers import Head
from training.recipes.options import (
    Fraction,
    FractionBelowOne,
    NonNegative,
    Options,
    PositiveFraction,
    Radians,
)

SelfWeight = Literal["auto_focus", "theta", "s", "l2"]

# Similarity limit of negatives while the threshold is relaxed: excludes only equal descriptors.
_RELAXED_CEILING = 1.0 - 1e-5


class SdgmOptions(Options):
    """`[loss]` of SDGM.

    `margin` is a probability; weights above it are the CDF if `soft` (the paper's raw stage), else
    1 (its fine-tune stage). `ema` is the rate of the moving averages. `power_init` is the initial
    value of both powers; 0 takes it from the first batch with an active triplet. `reset_powers`
    takes the powers from the first such batch after the warm-up. `warmup` and `relaxed` are
    fractions of training: all weights are 1 until `warmup`, and negatives within `threshold_rad`
    are used until `relaxed` (and, if `relaxed_angle` is not 0, until the mean angle of negatives
    exceeds it); later they are assumed to show the same point.
    """

    name: Literal["sdgm"] = "sdgm"
    margin: FractionBelowOne = 0.6
    alpha: NonNegative = 0.9
    soft: bool = True
    self_weight: SelfWeight = "auto_focus"
    power_adjustment: bool = True
    ema: PositiveFraction = 0.001
    power_init: NonNegative = 10000.0
    warmup: Fraction = 0.1
    reset_powers: bool = False
    threshold_rad: Radians = 0.6
    relaxed: Fraction = 0.125
    relaxed_angle: Radians = 0.0
    mining: Mining = "all_four"


def statistics(positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and sample standard deviations of theta_r, theta+ and theta-, (3,) each."""
    rows = torch.stack([positive - negative, positive, negative]).detach()
    return rows.mean(1), rows.std(1).clamp_min(1e-6)


def self_weight(kind: SelfWeight, theta: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return the self weight of angles: auto-focus (Eq. 9, 10) or a gradient norm (Eq. 5, 6, 7)."""
    theta = theta.detach()
    if kind == "auto_focus":
        return torch.exp(-(theta - mean).square() / (2 * (math.pi / 6 + std).square()))
    if kind == "s":
        return torch.sin(theta)
    return torch.cos(theta / 2) if kind == "l2" else torch.ones_like(theta)


def margin_weight(
    relative: Tensor, mean: Tensor, std: Tensor, *, margin: float, soft: bool
) -> Tensor:
    """Return the weight of triplets by rank (Eq. 11): 0 below the margin, the CDF or 1 above."""
    relative = relative.detach()
    quantile = torch.special.ndtri(torch.tensor(margin, dtype=torch.float64)).item()
    hard_margin = mean + quantile * std
    if not soft:
        above: Tensor = relative >= hard_margin
        return above.to(relative.dtype)
    share: Tensor = torch.special.ndtr((relative - mean) / std)
    return torch.where(relative > hard_margin, share, torch.zeros_like(share))


def pseudo_loss(
    angles: tuple[Tensor, Tensor],
    weights: tuple[Tensor, Tensor],
    powers: Tensor,
    alpha: float,
) -> Tensor:
    """Return alpha sum(w+ theta+) / E[P+] - sum(w- theta-) / E[P-], with constant w (Eq. 15)."""
    near = (weights[0].detach() * angles[0]).sum() / powers[0]
    far = (weights[1].detach() * angles[1]).sum() / powers[1]
    return alpha * near - far


class Sdgm(nn.Module):
    """The SDGM loss; remembers six statistics and two powers."""

    mean: Tensor
    std: Tensor
    powers: Tensor
    seen: Tensor
    modulated: Tensor

    def __init__(self, options: SdgmOptions) -> None:
        super().__init__()
        self.options = options
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("std", torch.ones(3))
        self.register_buffer("powers", torch.full((2,), options.power_init))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("modulated", torch.zeros((), dtype=torch.bool))

    def forward(self, pairs: Pairs) -> LossOutput:
        """Update statistics and powers, then return the pseudo loss of the batch."""
        cosine = hardest_similarity(
            pairs.anchors,
            pairs.positives,
            mining=self.options.mining,
            ceiling=self.ceiling(pairs.progress),
        )
        positive = angle(cosine_of_pairs(pairs.anchors, pairs.positives))
        negative = angle(cosine)
        self._update_statistics(positive, negative)
        weights = self._weights(positive, negative, pairs)
        powers = self._update_powers(weights, pairs.progress)
        self.seen += 1
        if self.options.power_adjustment:
            loss = pseudo_loss((positive, negative), weights, powers, self.options.alpha)
        else:
            rows = torch.full_like(powers, float(len(pairs)))
            loss = pseudo_loss((positive, negative), weights, rows, 1.0)
        names = ("theta_r", "theta_positive", "theta_negative")
        scalars = {f"mean/{n}": m for n, m in zip(names, self.mean, strict=True)}
        scalars |= {f"std/{n}": s for n, s in zip(names, self.std, strict=True)}
        scalars |= {"power/positive": powers[0], "power/negative": powers[1]}
        return LossOutput(loss, positive.detach(), negative.detach(), scalars)

    def ceiling(self, progress: float) -> float:
        """Return the similarity from which a negative is assumed to show the same point."""
        low_angle = self.options.relaxed_angle
        # Uses the statistics of earlier steps; the first step has none.
        is_early = bool(low_angle) and (not bool(self.seen) or float(self.mean[2]) < low_angle)
        if progress < self.options.relaxed or is_early:
            return _RELAXED_CEILING
        return ceiling_from_angle(self.options.threshold_rad)

    @torch.no_grad()
    def _update_statistics(self, positive: Tensor, negative: Tensor) -> None:
        mean, std = statistics(positive, negative)
        # The first batch sets all six. The released code starts E[theta_r] at -1, from which a
        # short run never recovers.
        rate = self._rate(self.seen == 0)
        self.mean.lerp_(mean.to(self.mean.dtype), rate)
        self.std.lerp_(std.to(self.std.dtype), rate)

    def _rate(self, is_first: Tensor) -> Tensor:
        """Return 1 for the first batch and `ema` later, without the host reading `is_first`."""
        return torch.full_like(self.mean[0], self.options.ema).masked_fill(is_first, 1.0)

    def _weights(self, positive: Tensor, negative: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
        sampled = torch.ones_like(positive) if pairs.weights is None else pairs.weights
        if pairs.progress < self.options.warmup:
            return sampled, sampled
        options, mean, std = self.options, self.mean, self.std
        common = sampled * margin_weight(
            positive - negative, mean[0], std[0], margin=options.margin, soft=options.soft
        )
        near = self_weight(options.self_weight, positive, mean[1], std[1])
        far = self_weight(options.self_weight, negative, mean[2], std[2])
        return common * near, common * far

    @torch.no_grad()
    def _update_powers(self, weights: tuple[Tensor, Tensor], progress: float) -> Tensor:
        batch = torch.stack([w.sum() for w in weights]).to(self.powers.dtype)
        # A power of 0 would make the loss of the next batches 1 / ema times too large: wait for the
        # first batch with an active triplet.
        has_active = (batch > 0).all()
        from_batch = (self.powers <= 0).any() & (not self.options.power_init)
        if progress >= self.options.warmup:
            from_batch |= ~self.modulated & has_active & self.options.reset_powers
            self.modulated |= has_active
        self.powers.lerp_(batch, self._rate(from_batch))
        return self.powers.clamp_min(1e-6)


def build(options: SdgmOptions, head: Head, batch: int) -> Sdgm:
    """Build the loss; it does not depend on `head` or `batch`."""
    del head, batch
    return Sdgm(options)
