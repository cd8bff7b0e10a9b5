"""The training methods: losses, mining of negatives, and samplers, each known by its name.

Where to change or add something:

- `sdgm`, `cdf`, `adasample`, `stochastic`, `baselines`, `classic` (TFeat, L2-Net): the methods,
  with their options and losses (and, for AdaSample, its sampler);
- `losses`: distances, and losses of distances, as pure functions;
- `mining`: the hard negatives of a batch; `triplets` turns them into distances;
- `samplers`: the interface of samplers, and the uniform one;
- `contract`: what a loss receives and returns.

A new method needs an entry in `METHODS` (and `SAMPLERS`) and in the union of options below it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from training.methods import adasample, baselines, cdf, classic, sdgm, stochastic
from training.methods.contract import LossOutput, Method, PairLoss, Pairs
from training.methods.samplers import SamplerEntry, Uniform, UniformOptions

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
    "sosnet": Method(baselines.SosNetOptions, baselines.build_sosnet),
    "l2net": Method(classic.L2NetOptions, classic.build_l2net),
    "tfeat": Method(classic.TFeatOptions, classic.build_tfeat, ("unit", "linear")),
}

LossOptions = Annotated[
    sdgm.SdgmOptions
    | cdf.CdfOptions
    | adasample.AdaSampleOptions
    | stochastic.SiameseOptions
    | stochastic.TripletOptions
    | stochastic.ContrastiveOptions
    | stochastic.PlainTripletOptions
    | baselines.HardNetOptions
    | baselines.SoftplusOptions
    | baselines.HardestOptions
    | baselines.HyNetOptions
    | baselines.SosNetOptions
    | classic.L2NetOptions
    | classic.TFeatOptions,
    Field(discriminator="name"),
]

SAMPLERS: dict[str, SamplerEntry[Any]] = {
    "uniform": SamplerEntry(UniformOptions, Uniform),
    "adasample": SamplerEntry(adasample.AdaSampleSamplerOptions, adasample.AdaSample),
}

AnySamplerOptions = Annotated[
    UniformOptions | adasample.AdaSampleSamplerOptions, Field(discriminator="name")
]

__all__ = [
    "METHODS",
    "SAMPLERS",
    "AnySamplerOptions",
    "LossOptions",
    "LossOutput",
    "Method",
    "PairLoss",
    "Pairs",
]
