"""The optimiser, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from training.recipes.options import (
    Fraction,
    FractionBelowOne,
    NonNegative,
    Options,
    Positive,
    option_problem,
)

Schedule = Literal["linear", "cosine", "constant", "halving", "milestones"]


class OptimOptions(Options):
    """`[optim]`: the optimiser and its learning rate `lr`.

    `schedule` is how the rate changes: `linear` and `cosine` decrease to 0 at the end of the run,
    `halving` halves the rate after every tenth of the run, `milestones` divides it by ten at each
    of these fractions of the run, `constant` keeps it. During the fraction `warmup` of the run the
    rate rises linearly to `lr`.
    """

    name: Literal["sgd", "adam"] = "sgd"
    lr: Positive = 0.1
    momentum: FractionBelowOne = 0.9
    dampening: Fraction = 0.0
    weight_decay: NonNegative = 1e-4
    schedule: Schedule = "linear"
    milestones: Annotated[tuple[Fraction, ...], Field(strict=False)] = ()
    warmup: FractionBelowOne = 0.0

    @model_validator(mode="after")
    def _check_milestones(self) -> Self:
        if self.schedule == "milestones" and not self.milestones:
            raise option_problem(
                "milestones", "expected at least one milestone for schedule = 'milestones'"
            )
        return self


def build_optimizer(
    options: OptimOptions, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """Build the optimiser, with all parameters in one group like in the papers."""
    if options.name == "adam":
        return torch.optim.Adam(parameters, lr=options.lr, weight_decay=options.weight_decay)
    return torch.optim.SGD(
        parameters,
        lr=options.lr,
        momentum=options.momentum,
        dampening=options.dampening,
        weight_decay=options.weight_decay,
    )


def learning_rate(options: OptimOptions, step: int, steps: int) -> float:
    """Return the learning rate of step `step` (from 0) of `steps`."""
    warm = options.warmup * steps
    if step < warm:
        return options.lr * (step + 1) / (math.floor(warm) + 1)
    progress = step / steps
    if options.schedule == "linear":
        return options.lr * (1.0 - progress)
    if options.schedule == "cosine":
        return options.lr * 0.5 * (1.0 + math.cos(math.pi * progress))
    if options.schedule == "halving":
        return options.lr * 0.5 ** min(9, math.floor(progress * 10))
    if options.schedule == "milestones":
        return options.lr * float(0.1 ** sum(progress >= m for m in options.milestones))
    return options.lr
