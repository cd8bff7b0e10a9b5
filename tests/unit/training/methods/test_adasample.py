"""AdaSample: its loss, and the pairs that its sampler selects."""

import math

import pytest
import torch

from tests.unit.training.golden import pairs
from training.data.store.reader import PatchStore
from training.methods import METHODS, SAMPLERS, LossOutput
from training.methods.adasample import (
    AdaSample,
    AdaSampleOptions,
    AdaSampleSamplerOptions,
    exponent,
    pair_weights,
    positive_probabilities,
)
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


def chosen_positive(patches: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    same = (patches[:, 1:] == pairs[:, 1:2]).flatten(2).all(2)
    return same.float().argmax(1)


@torch.no_grad()
def distances(net: DescriptorNet, patches: torch.Tensor) -> torch.Tensor:
    net.eval()
    described = net(patches.flatten(0, 1)).reshape(*patches.shape[:2], -1)
    return torch.acos((described[:, :1] * described[:, 1:]).sum(2).clamp(-1, 1))


def test_sampler_infinite_lambda_takes_the_hardest(stores: list[PatchStore]) -> None:
    net, patches = network(), candidates(stores, 5)
    sampler = AdaSample(AdaSampleSamplerOptions(lam=math.inf))
    chosen = sampler.select(net, patches, torch.Generator().manual_seed(0), 0.5)
    expected = distances(net, patches).argmax(1)
    assert chosen_positive(patches, chosen.patches).tolist() == expected.tolist()
    hardest = distances(net, patches).amax(1).clamp_min(0.05)
    torch.testing.assert_close(
        chosen.weights, (1 / hardest) / (1 / hardest).mean(), rtol=1e-4, atol=1e-4
    )
    assert chosen.weights is not None
    assert float(chosen.weights.mean()) == pytest.approx(1)


def test_sampler_zero_lambda_is_uniform(stores: list[PatchStore]) -> None:
    net, patches = network(), candidates(stores, 5)
    sampler = AdaSample(AdaSampleSamplerOptions(lam=0.0, weighted=False))
    counts = torch.zeros(4)
    for seed in range(12):
        chosen = sampler.select(net, patches, torch.Generator().manual_seed(seed), 0.5)
        assert chosen.weights is None
        counts += torch.bincount(chosen_positive(patches, chosen.patches), minlength=4)
    assert float((counts / counts.sum() - 0.25).abs().max()) < 0.08


@pytest.mark.parametrize("average_loss", [1.0, 0.1])
def test_sampler_frequencies_follow_the_probabilities(
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


def test_sampler_starts_uniform_and_keeps_the_networks_mode(stores: list[PatchStore]) -> None:
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


@pytest.mark.parametrize("options", [{"start": 0.2}, {"lam": 0.0, "weighted": False}])
def test_uniform_draws_do_not_describe_the_candidates(
    stores: list[PatchStore], options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, patches = network(), candidates(stores, 4)
    sampler = AdaSample(AdaSampleSamplerOptions.model_validate(options))
    by_distance = AdaSample(AdaSampleSamplerOptions(lam=1e-300))
    wanted = by_distance.select(net, patches, torch.Generator().manual_seed(3), 0.1)
    monkeypatch.setattr(DescriptorNet, "forward", None)
    found = sampler.select(net, patches, torch.Generator().manual_seed(3), 0.1)
    torch.testing.assert_close(found.patches, wanted.patches, rtol=0, atol=0)


def test_sampler_average_loss() -> None:
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


def test_sampler_euclidean_distances_for_linear_heads(stores: list[PatchStore]) -> None:
    net, patches = network(head="linear"), candidates(stores, 4)
    sampler = AdaSample(AdaSampleSamplerOptions(lam=math.inf, metric="euclidean"))
    chosen = sampler.select(net, patches, torch.Generator().manual_seed(0), 0.5)
    with torch.no_grad():
        net.eval()
        described = net(patches.flatten(0, 1)).reshape(40, 4, -1)
    expected = (described[:, :1] - described[:, 1:]).norm(dim=2).argmax(1)
    assert chosen_positive(patches, chosen.patches).tolist() == expected.tolist()


def test_golden_batch() -> None:
    loss = METHODS["adasample"].build(AdaSampleOptions(threshold=0.0), "unit", 1024)
    out = loss(pairs())
    values = torch.relu(1 + out.positive**2 - out.negative**2)
    expected = [0.67493, 0.93888, 0.31437, 0, 0, 0.01981, 0.75160, 0.84262]
    assert values.tolist() == pytest.approx(expected, abs=5.1e-6)
    assert float(out.loss) == pytest.approx(0.442778, abs=5.1e-7)
    weights = pair_weights(out.positive)
    assert weights.tolist() == pytest.approx(
        [2.1878, 0.5589, 0.7212, 0.8441, 0.5474, 1.5289, 0.8544, 0.7573], abs=5.1e-5
    )
    weighted = loss(pairs(weights=weights))
    assert float(weighted.loss) == pytest.approx(0.442337, abs=5.1e-7)


def test_probabilities() -> None:
    d = torch.tensor([0.2, 0.4, 0.8], dtype=torch.float64)
    assert positive_probabilities(d, 1.0).tolist() == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    ten = positive_probabilities(d, 10.0)
    assert float(ten[2]) == pytest.approx(0.99902, abs=5.1e-6)
    assert float(ten[1]) == pytest.approx(9.8e-4, abs=1e-5)
    assert positive_probabilities(d, 0.0).tolist() == pytest.approx([1 / 3] * 3)
    assert positive_probabilities(d, 1e4).tolist() == [0.0, 0.0, 1.0]
    assert positive_probabilities(d, math.inf).tolist() == [0.0, 0.0, 1.0]
    power = float(exponent(10.0, torch.tensor(0.4)))
    p = positive_probabilities(d, power)
    assert float(p[2] / p[1]) == pytest.approx(2**25.0)
    assert float(exponent(10.0, torch.tensor(0.001))) == 50.0
    assert float(exponent(math.inf, torch.tensor(0.4))) == math.inf


def test_weights_make_the_estimate_unbiased() -> None:
    generator = torch.Generator().manual_seed(0)
    d = torch.rand(5, generator=generator, dtype=torch.float64) + 0.1
    g, c = (torch.rand(5, generator=generator, dtype=torch.float64) for _ in range(2))
    p = positive_probabilities(d, 3.0)
    assert float((p * (c / p) * g).sum()) == pytest.approx(float((c * g).sum()))
    product = p * pair_weights(d)
    ratio = product / d**2
    torch.testing.assert_close(ratio, ratio[:1].expand(5))
