"""The losses a recipe can name, each with its options."""

from __future__ import annotations

from typing import Any

from training.methods import (
    adasample,
    baselines,
    cdf,
    sdgm,
    stochastic,
)
from training.methods.contract import (
    LossOutput,
    Method,
    PairLoss,
    Pairs,
)

METHODS: dict[str, Method[Any]] = {
    "sdgm": Method(sdgm.SdgmOptions, sdgm.build),
    "cdf": Method(cdf.CdfOptions, cdf.build, ("unit", "binary")),
    "adasample": Method(adasample.AdaSampleOptions, adasample.build),
    "stochastic_siamese": Method(stochastic.SiameseOptions, stochastic.build, ("unit", "linear")),
    "stochastic_triplet": Method(stochastic.TripletOptions, stochastic.build, ("unit", "linear")),
    "contrastive": Method(stochastic.ContrastiveOptions, stochastic.build, ("unit", "linear")),
    "plain_triplet": Method(stochastic.PlainTripletOptions, stochastic.build, ("unit", "linear")),
    "hardnet": Method(baselines.HardNetOptions, baselines.build, ("unit", "binary")),
    "softplus": Method(baselines.SoftplusOptions, baselines.build, ("unit", "binary")),
    "hardest": Method(baselines.HardestOptions, baselines.build, ("unit", "binary")),
    "hynet": Method(baselines.HyNetOptions, baselines.build_hynet),
}

__all__ = ["METHODS", "LossOutput", "Method", "PairLoss", "Pairs"]
