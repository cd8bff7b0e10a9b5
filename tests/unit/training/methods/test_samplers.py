"""The uniform sampler."""

import torch

from training.data.store.reader import PatchStore
from training.methods.samplers import Uniform, UniformOptions
from training.networks import NetworkOptions, build_network
from training.networks.layers import DescriptorNet, Head
from training.runs.augment import AugmentOptions
from training.runs.batches import Batches


def network(head: Head = "unit") -> DescriptorNet:
    torch.manual_seed(0)
    return build_network(NetworkOptions(name="patchify48", width=0.25, dim=16, head=head), 32)


def candidates(stores: list[PatchStore], count: int) -> torch.Tensor:
    plain = AugmentOptions(turns="none")
    made = Batches(
        stores[:1], [40], seed=5, candidates=count, order="replacement", augmentation=plain
    )
    return made.prepare(0)


def test_uniform_takes_the_drawn_pair(stores: list[PatchStore]) -> None:
    patches = candidates(stores, 2)
    chosen = Uniform(UniformOptions()).select(network(), patches, torch.Generator(), 0.5)
    assert chosen.weights is None
    assert chosen.patches is patches
