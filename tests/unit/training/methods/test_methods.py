import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import DynamicSoftMarginLoss
from scipy.stats import norm

from tests.unit.training.golden import (
    naive_distance,
    naive_negative,
    pairs,
    random_pairs,
)
from training.methods import METHODS, Pairs
from training.methods.baselines import HardNetOptions, HyNetOptions
from training.methods.cdf import CdfOptions, MovingHistogram, allocate
from training.methods.contract import LossOutput
from training.methods.sdgm import SdgmOptions
from training.networks.layers import Head


def build(name: str, head: Head = "unit", batch: int = 1024, **changes: Any) -> Any:
    entry = METHODS[name]
    loss: Any = entry.build(entry.options(**changes), head, batch)
    return loss.double()


def random_batch(count: int, dim: int, seed: int, progress: float = 0.5) -> Pairs:
    anchors, positives = random_pairs(count, dim, seed)
    generator = torch.Generator().manual_seed(seed)
    return Pairs(anchors=anchors, positives=positives, generator=generator, progress=progress)


def test_cdf_golden_batch() -> None:
    loss = build("cdf", bins=512)
    out = loss(pairs())
    positive = [0.11740, 0.45575, 0.35442, 0.30327, 0.46519, 0.16789, 0.29964, 0.33770]
    negative = [0.57394, 0.51613, 0.87122, 1.08783, 1.04982, 0.96255, 0.57394, 0.51613]
    weights = [0.60281, 0.90168, 0.44013, 0.21596, 0.27332, 0.00214, 0.69261, 0.78683]
    assert out.positive.tolist() == pytest.approx(positive, abs=5.1e-6)
    assert out.negative.tolist() == pytest.approx(negative, abs=5.1e-6)
    fresh = build("cdf", bins=512)
    found = fresh.weights(out.positive, out.negative)
    assert found.tolist() == pytest.approx(weights, abs=5.1e-6)
    assert float(found.mean()) == pytest.approx(0.489, abs=5e-4)
    assert float(out.loss) == pytest.approx(-0.152301, abs=5.1e-7)


def test_cdf_gaussian_golden_batch() -> None:
    loss = build("cdf", distribution="gaussian")
    out = loss(pairs())
    weights = [0.49960, 0.94166, 0.40524, 0.09665, 0.30552, 0.08998, 0.76460, 0.86456]
    found = build("cdf", distribution="gaussian").weights(out.positive, out.negative)
    assert found.tolist() == pytest.approx(weights, abs=5.1e-6)


def test_histogram_toy() -> None:
    x = torch.tensor([-1, -0.5, -0.25, 0, 0.3], dtype=torch.float64)
    histogram = MovingHistogram(512, -2, 2, 0.1)
    weights = histogram.rank(x)
    assert weights.tolist() == pytest.approx([0.05, 0.275, 0.4875, 0.70, 0.835], abs=1e-9)
    assert float((weights * x).mean()) == pytest.approx(-0.011775, abs=1e-9)
    assert float(histogram.histogram.sum()) == pytest.approx(1, abs=1e-6)


def test_histogram_moves_by_its_momentum_after_the_first_batch() -> None:
    histogram = MovingHistogram(5, -2, 2, 0.25)
    histogram.rank(torch.tensor([-2.0, -2.0]))
    histogram.rank(torch.tensor([1.0, 1.0]))
    assert histogram.histogram.tolist() == pytest.approx([0.75, 0, 0, 0.25, 0], abs=1e-5)


def test_allocation_equals_a_loop_and_clamps() -> None:
    values = torch.tensor([-5.0, -1.99, 0.31, 2.0, 7.0], dtype=torch.float64)
    found, _ = allocate(values, 11, -2, 2)
    expected = [0.0] * 11
    for x in values.tolist():
        position = min(max((x + 2) / 0.4, 0), 10)
        lower = math.floor(position)
        expected[lower] += 1 - (position - lower)
        expected[min(lower + 1, 10)] += position - lower
    assert (found * 5).tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("distribution", ["difference", "gaussian"])
def test_cdf_weights_rise_with_hardness(distribution: str) -> None:
    x, _ = torch.sort(torch.randn(300, generator=torch.Generator().manual_seed(0)).double() * 0.3)
    loss = build("cdf", distribution=distribution, batch=600)
    weights = loss.weights(x, torch.zeros_like(x))
    assert bool((weights.diff() >= 0).all())
    assert float(weights.min()) > 0
    assert float(weights.max()) <= 1
    assert float(weights.mean()) == pytest.approx(0.5, abs=0.03)
    if distribution == "difference":
        assert float(weights.max()) == pytest.approx(1, abs=1 / 300)


def test_cdf_of_single_distances() -> None:
    positive = torch.tensor([0.2, 0.4, 0.6], dtype=torch.float64)
    negative = torch.tensor([0.9, 1.1, 1.3], dtype=torch.float64)
    by_positive = build("cdf", distribution="positive").weights(positive, negative)
    by_negative = build("cdf", distribution="negative").weights(positive, negative)
    assert bool((by_positive.diff() > 0).all())
    assert bool((by_negative.diff() < 0).all())


def test_cdf_all_equal_weights_are_identical_and_positive() -> None:
    weights = build("cdf").weights(torch.full((9,), 0.5).double(), torch.full((9,), 1.0).double())
    assert len(set(weights.tolist())) == 1
    assert float(weights[0]) > 0


def test_cdf_with_weight_one_is_hardnet_with_margin_two(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = random_batch(16, 8, seed=1)
    loss = build("cdf")
    monkeypatch.setattr(loss, "weights", lambda positive, _negative: torch.ones_like(positive))
    hardnet = build("hardnet", margin=2.0)
    assert float(loss(batch).loss) == pytest.approx(float(hardnet(batch).loss) - 2, abs=1e-12)


def their_loss(batch: int) -> DynamicSoftMarginLoss:
    # They add the new batch unnormalised, so a share of 0.1 needs a smaller momentum there.
    momentum = 0.1 / (0.9 * batch + 0.1)
    loss = DynamicSoftMarginLoss(min_val=-2.0, num_bins=511, momentum=momentum)
    loss.hist_ = loss.hist_.double()
    return loss


def test_cdf_equals_pytorch_metric_learning() -> None:
    # Their 511 cells of width 4/511 start where our 512 nodes lie. On the same d+ - d- the two
    # agree exactly; on descriptors up to the 1e-6 that we keep under the root of a distance.
    theirs = their_loss(32)
    ours = build("cdf", bins=512, momentum=0.1, threshold=0.0)
    for seed in range(4):
        batch = random_batch(32, 16, seed)
        expected = float(theirs(batch.anchors, ref_emb=batch.positives))
        assert float(ours(batch).loss) == pytest.approx(expected, abs=3e-5)


def test_cdf_weights_equal_pytorch_metric_learnings() -> None:
    theirs = their_loss(64)
    ours = build("cdf", bins=512, momentum=0.1)
    for seed in range(5):
        x = torch.randn(64, generator=torch.Generator().manual_seed(seed)).double() * 0.3
        theirs.update_histogram(x)
        expected = theirs.weigh_loss(x)
        found = ours.weights(x, torch.zeros_like(x)) * x
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_cdf_binary_uses_bits_for_weights_and_soft_codes_for_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    anchors = torch.tanh(torch.randn(12, 32, generator=generator, dtype=torch.float64))
    noise = 0.6 * torch.randn(12, 32, generator=generator, dtype=torch.float64)
    positives = torch.tanh(torch.atanh(anchors) + noise).requires_grad_()
    loss = build("cdf", head="binary", bins=64)
    out = loss(pairs(anchors=anchors, positives=positives))
    bits_a, bits_p = anchors > 0, positives > 0
    for i in range(12):
        own = 2 * int((bits_a[i] != bits_p[i]).sum()) / 32
        assert float(out.positive[i]) == pytest.approx(own)
        others = [
            int((x != y).sum())
            for j in range(12)
            if j != i
            for x, y in ((bits_a[i], bits_p[j]), (bits_a[j], bits_p[i]))
        ]
        assert float(out.negative[i]) == pytest.approx(2 * min(o for o in others if o >= 2) / 32)
    out.loss.backward()
    assert positives.grad is not None
    assert float(positives.grad.abs().sum()) > 0


def test_hardnet_softplus_golden() -> None:
    assert float(build("hardnet")(pairs()).loss) == pytest.approx(0.543714, abs=5.1e-7)
    assert float(build("softplus")(pairs()).loss) == pytest.approx(0.498351, abs=5.1e-7)


@pytest.mark.parametrize("mining", ["row_column", "all_four"])
def test_baselines_equal_loop_twins(mining: str) -> None:
    batch = random_batch(18, 6, seed=4)
    ceiling = 1 - 0.1**2 / 2
    negative = [
        naive_distance(s) for s in naive_negative(batch.anchors, batch.positives, mining, ceiling)
    ]
    positive = [
        naive_distance(float(a @ p)) for a, p in zip(batch.anchors, batch.positives, strict=True)
    ]
    x = [p - n for p, n in zip(positive, negative, strict=True)]
    common: dict[str, Any] = {"mining": mining, "threshold": 0.1}
    hinges = [max(0.0, 0.2 + v) for v in x]
    expected = {
        build("hardnet", margin=0.2, **common): sum(hinges) / 18,
        build("hardnet", margin=0.2, active_only=True, **common): sum(hinges)
        / sum(h > 0 for h in hinges),
        build("softplus", **common): sum(math.log1p(math.exp(v)) for v in x) / 18,
        build("hardest", divisor=4, **common): sum(sorted(x)[-4:]) / 4,
    }
    for loss, value in expected.items():
        assert float(loss(batch).loss) == pytest.approx(value, abs=1e-12)


def test_hynet_equals_a_loop_twin() -> None:
    batch = random_batch(10, 5, seed=6)
    features = torch.cat([2 * batch.anchors, 3 * batch.positives])
    batch = Pairs(batch.anchors, batch.positives, batch.generator, features=features)
    negative = naive_negative(batch.anchors, batch.positives, "all_four", 1 - 0.008**2 / 2)
    total = 0.0
    for a, p, s in zip(batch.anchors, batch.positives, negative, strict=True):
        own = float(a @ p)
        near, far = (naive_distance(c) + 2 * (1 - c) for c in (own, s))
        total += max(0, 1.2 + near - far)
    assert HyNetOptions().alpha == 2.0
    assert float(build("hynet")(batch).loss) == pytest.approx(total / 10 + 0.1, abs=1e-12)


def gradient_function(
    name: str, head: Head
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The loss as a function of descriptors alone, its state fixed at that before the call."""

    def value(anchors: torch.Tensor, positives: torch.Tensor) -> torch.Tensor:
        changes: dict[str, Any] = {"warmup": 0.0, "relaxed": 0.0} if name == "sdgm" else {}
        loss = build(name, head=head, batch=64, **changes)
        output: LossOutput = loss(pairs(anchors=anchors, positives=positives))
        return output.loss

    return value


@pytest.mark.parametrize("name", [n for n in METHODS if n not in ("sdgm", "cdf")])
def test_gradcheck(name: str) -> None:
    entry = METHODS[name]
    head: Head = "linear" if "linear" in entry.heads else "unit"
    anchors, positives = (x.requires_grad_() for x in random_pairs(9, 5, seed=3))
    assert torch.autograd.gradcheck(gradient_function(name, head), (anchors, positives))


@pytest.mark.parametrize("name", ["hardnet", "cdf", "softplus"])
def test_binary_losses_differentiate_with_weights_held(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.tanh(torch.randn(2, 6, 16, generator=generator, dtype=torch.float64))
    codes[1] = 0.8 * codes[0] + 0.2 * codes[1]
    anchors, positives = (c.clone().requires_grad_() for c in codes)
    # Weights come from bits, which a small step does not flip: the whole loss can be checked.
    assert torch.autograd.gradcheck(gradient_function(name, "binary"), (anchors, positives))


def test_cdf_gradient_is_that_of_constant_weights() -> None:
    anchors, positives = (x.requires_grad_() for x in random_pairs(9, 5, seed=3))
    loss = build("cdf", bins=64)
    out = loss(pairs(anchors=anchors, positives=positives))
    weights = build("cdf", bins=64).weights(out.positive, out.negative)

    def held(a: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        fixed = build("cdf", bins=64)
        fixed.weights = lambda _positive, _negative: weights
        output: LossOutput = fixed(pairs(anchors=a, positives=p))
        return output.loss

    assert torch.autograd.gradcheck(held, (anchors, positives))
    found = torch.autograd.grad(out.loss, (anchors, positives))
    expected = torch.autograd.grad(held(anchors, positives), (anchors, positives))
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)


def test_sampler_weights_scale_every_mean() -> None:
    twice = torch.full((8,), 2.0, dtype=torch.float64)
    for name in ("hardnet", "softplus", "hardest", "cdf", "adasample", "hynet"):
        plain, weighted = build(name)(pairs()), build(name)(pairs(weights=twice))
        assert float(weighted.loss) == pytest.approx(2 * float(plain.loss))


def test_defaults_are_the_papers() -> None:
    assert (SdgmOptions().margin, SdgmOptions().alpha, SdgmOptions().ema) == (0.6, 0.9, 0.001)
    assert CdfOptions().momentum == 0.1
    assert HardNetOptions().margin == 1.0
    assert norm.ppf(SdgmOptions().margin) == pytest.approx(0.25335, abs=5.1e-6)
