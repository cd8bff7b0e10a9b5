"""Which pairs a step learns from: two at random, or AdaSample's."""

import math

import pytest
import torch

from training.data.store.reader import PatchStore
from training.methods import SAMPLERS, LossOutput
from training.methods.adasample import AdaSample, AdaSampleSamplerOptions
from training.methods.samplers import Uniform, UniformOptions
from training.networks import NetworkOptions, build_network
from training.runs.augment import AugmentOptions
from training.runs.batches import Batches


def network(head: str = "unit"):
    torch.manual_seed(0)
    return build_network(NetworkOptions(name="patchify48", width=0.25, dim=16, head=head), 32)


def candidates(stores: list[PatchStore], count: int) -> torch.Tensor:
    plain = AugmentOptions(turns="none")
    made = Batches(
        stores[:1], [40], seed=5, candidates=count, order="replacement", augmentation=plain
    )
    return made.prepare(0)


def chosen_positive(patches: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    same = (patches[:, 1:] == pairs[:, 1:2]).flatten(2).all(2)
    return same.float().argmax(1)


@torch.no_grad()
def distances(net, patches: torch.Tensor) -> torch.Tensor:
    net.eval()
    described = net(patches.flatten(0, 1)).reshape(*patches.shape[:2], -1)
    return torch.acos((described[:, :1] * described[:, 1:]).sum(2).clamp(-1, 1))


def test_uniform_takes_the_drawn_pair(stores: list[PatchStore]) -> None:
    patches = candidates(stores, 2)
    chosen = Uniform(UniformOptions()).select(network(), patches, torch.Generator(), 0.5)
    assert chosen.weights is None
    assert chosen.patches is patches


def test_adasample_infinite_lambda_takes_the_hardest(stores: list[PatchStore]) -> None:
    net, patches = network(), candidates(stores, 5)
    sampler = AdaSample(AdaSampleSamplerOptions(lam=math.inf))
    chosen = sampler.select(net, patches, torch.Generator().manual_seed(0), 0.5)
    expected = distances(net, patches).argmax(1)
    assert chosen_positive(patches, chosen.patches).tolist() == expected.tolist()
    hardest = distances(net, patches).amax(1).clamp_min(0.05)
    torch.testing.assert_close(
        chosen.weights, (1 / hardest) / (1 / hardest).mean(), rtol=1e-4, atol=1e-4
    )
    assert float(chosen.weights.mean()) == pytest.approx(1)


def test_adasample_zero_lambda_is_uniform(stores: list[PatchStore]) -> None:
    net, patches = network(), candidates(stores, 5)
    sampler = AdaSample(AdaSampleSamplerOptions(lam=0.0, weighted=False))
    counts = torch.zeros(4)
    for seed in range(12):
        chosen = sampler.select(net, patches, torch.Generator().manual_seed(seed), 0.5)
        assert chosen.weights is None
        counts += torch.bincount(chosen_positive(patches, chosen.patches), minlength=4)
    assert float((counts / counts.sum() - 0.25).abs().max()) < 0.08


@pytest.mark.parametrize("average_loss", [1.0, 0.1])
def test_adasample_frequencies_follow_the_probabilities(
    average_loss: float, stores: list[PatchStore]
) -> None:
    net, patches = network(), candidates(stores, 3)
    sampler = AdaSample(AdaSampleSamplerOptions(lam=2.0))
    sampler.average_loss.fill_(average_loss)
    d = distances(net, patches).double()
    shares = d ** (2.0 / average_loss)
    expected = (shares / shares.sum(1, keepdim=True)).amax(1).sum() * 60
    found = sum(
        int((chosen_positive(patches, c.patches) == d.argmax(1)).sum())
        for c in (
            sampler.select(net, patches, torch.Generator().manual_seed(s), 0.5) for s in range(60)
        )
    )
    assert found == pytest.approx(float(expected), rel=0.05)


def test_adasample_starts_uniform_and_keeps_the_networks_mode(stores: list[PatchStore]) -> None:
    net, patches = network(), candidates(stores, 3)
    sampler = AdaSample(AdaSampleSamplerOptions(lam=math.inf, start=0.2))
    net.train()
    before = [b.clone() for b in net.buffers()]
    early = sampler.select(net, patches, torch.Generator().manual_seed(0), 0.1)
    assert early.weights is None
    assert len(set(chosen_positive(patches, early.patches).tolist())) > 1
    assert net.training
    for old, new in zip(before, net.buffers(), strict=True):
        torch.testing.assert_close(old, new)


def test_adasample_average_loss() -> None:
    sampler = AdaSample(AdaSampleSamplerOptions(rate=0.25, margin=1.0))
    assert float(sampler.average_loss) == 1.0
    positive, negative = torch.tensor([0.5, 0.1]), torch.tensor([0.7, 2.0])
    sampler.observe(LossOutput(torch.zeros(()), positive, negative))
    batch = (1 + 0.25 - 0.49 + 0) / 2
    assert float(sampler.average_loss) == pytest.approx(0.75 + 0.25 * batch)
    other = AdaSample(AdaSampleSamplerOptions())
    other.load_state_dict(sampler.state_dict())
    assert float(other.average_loss) == float(sampler.average_loss)
    assert set(SAMPLERS) == {"uniform", "adasample"}


def test_adasample_euclidean_distances_for_linear_heads(stores: list[PatchStore]) -> None:
    net, patches = network(head="linear"), candidates(stores, 4)
    sampler = AdaSample(AdaSampleSamplerOptions(lam=math.inf, metric="euclidean"))
    chosen = sampler.select(net, patches, torch.Generator().manual_seed(0), 0.5)
    with torch.no_grad():
        net.eval()
        described = net(patches.flatten(0, 1)).reshape(40, 4, -1)
    expected = (described[:, :1] - described[:, 1:]).norm(dim=2).argmax(1)
    assert chosen_positive(patches, chosen.patches).tolist() == expected.tolist()
