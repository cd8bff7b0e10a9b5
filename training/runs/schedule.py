"""The optimiser and its learning rate over a run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import nn

from training.runs.ranges import (
    NotNegative,
    Positive,
    Range,
    Share,
)

Schedule = Literal["linear", "cosine", "constant", "halving", "milestones"]


@dataclass(frozen=True, slots=True)
class OptimOptions:
    """`[optim]`.

    Schedules: `linear` and `cosine` end at 0; `halving` halves nine times at every tenth of the
    run; `milestones` divides by ten at each of those fractions. `warmup` is the fraction over
    which the rate rises linearly to `lr`.
    """

    name: Literal["sgd", "adam"] = "sgd"
    lr: Positive = 0.1
    momentum: Annotated[float, Range(0.0, below=1.0)] = 0.9
    dampening: Share = 0.0
    weight_decay: NotNegative = 1e-4
    schedule: Schedule = "linear"
    milestones: tuple[float, ...] = ()
    warmup: Annotated[float, Range(0.0, below=1.0)] = 0.0


def build_optimizer(
    options: OptimOptions, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """Build the optimiser over `parameters`, all in one group as the papers have it."""
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
    """Return the rate of `step` of `steps`."""
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
