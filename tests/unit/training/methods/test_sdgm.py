import math
from typing import Any

import pytest
import torch

from tests.unit.training.golden import descriptors, pairs, random_pairs
from training.methods import Pairs
from training.methods.contract import LossOutput
from training.methods.losses import angle
from training.methods.sdgm import (
    Sdgm,
    SdgmOptions,
    SelfWeight,
    margin_weight,
    pseudo_loss,
    self_weight,
    statistics,
)

# Powers from the batch itself, nothing warmed up: the golden numbers' setting.
MAIN = {"warmup": 0.0, "relaxed": 0.0, "power_init": 0.0}


def sdgm(**changes: Any) -> Sdgm:
    return Sdgm(SdgmOptions(**changes)).double()


def angles(theta: list[float]) -> torch.Tensor:
    return torch.tensor(theta, dtype=torch.float64)


def test_golden_angles_and_statistics() -> None:
    loss = sdgm(**MAIN)
    out = loss(pairs())
    near = [0.11746, 0.45979, 0.35630, 0.30444, 0.46949, 0.16808, 0.30077, 0.33932]
    far = [1.32088, 1.00421, 0.82118, 1.15019, 0.82118, 1.00421, 0.90143, 1.33175]
    assert out.positive.tolist() == pytest.approx(near, abs=5.1e-6)
    assert out.negative.tolist() == pytest.approx(far, abs=5.1e-6)
    assert loss.mean.tolist() == pytest.approx([-0.72992, 0.31446, 1.04438], abs=5.1e-6)
    assert loss.std.tolist() == pytest.approx([0.28840, 0.12424, 0.20477], abs=5.1e-6)
    margin = float(loss.mean[0] + 0.2533471 * loss.std[0])
    assert margin == pytest.approx(-0.65686, abs=5.1e-6)
    weights = margin_weight(
        out.positive - out.negative, loss.mean[0], loss.std[0], margin=0.6, soft=True
    )
    expected = [0, 0.73995, 0.82095, 0, 0.90515, 0, 0.67300, 0]
    assert weights.tolist() == pytest.approx(expected, abs=5.1e-6)


def test_golden_relaxed_negatives() -> None:
    out = sdgm(**{**MAIN, "relaxed": 0.6})(pairs(progress=0.5))
    far = [0.57043, 0.52203, 0.82118, 1.15019, 0.82118, 1.00421, 0.57043, 0.52203]
    assert out.negative.tolist() == pytest.approx(far, abs=5.1e-6)


@pytest.mark.parametrize(
    ("changes", "powers", "value"),
    [
        ({}, (3.09326, 3.04592), -0.522476),
        ({"soft": False}, (3.94462, 3.88767), -0.532312),
        ({"relaxed": 1.0}, (3.00358, 2.94894), -0.243218),
    ],
)
def test_golden_powers_and_loss(changes: dict[str, Any], powers: list[float], value: float) -> None:
    loss = sdgm(**{**MAIN, **changes})
    out = loss(pairs())
    assert loss.powers.tolist() == pytest.approx(powers, abs=5.1e-6)
    assert float(out.loss) == pytest.approx(value, abs=5.1e-7)


def test_golden_first_step_of_warm_up() -> None:
    loss = sdgm()
    out = loss(pairs(progress=0.0))
    assert loss.powers.tolist() == pytest.approx([9990.008] * 2)
    assert float(out.loss) == pytest.approx(-0.00037213, abs=5.1e-9)


def naive(
    a: torch.Tensor,
    p: torch.Tensor,
    negative_angles: list[float],
    given: list[float],
    soft: bool,
    warm: bool = False,
) -> float:
    """The pseudo loss of one batch by loops, powers and statistics of that batch.

    `given` are the sampler's weights; all others are 1 when `warm`.
    """
    near = [math.acos(min(float(x @ y), 1 - 1e-5)) for x, y in zip(a, p, strict=True)]
    far = negative_angles
    relative = [x - y for x, y in zip(near, far, strict=True)]

    def moments(values: list[float]) -> tuple[float, float]:
        mean = sum(values) / len(values)
        return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))

    def focus(value: float, mean: float, std: float) -> float:
        return math.exp(-((value - mean) ** 2) / (2 * (math.pi / 6 + std) ** 2))

    (mr, sr), (mp, sp), (mn, sn) = moments(relative), moments(near), moments(far)
    sums = [0.0] * 4
    for x, y, r, g in zip(near, far, relative, given, strict=True):
        if not warm and r <= mr + 0.2533471031357997 * sr:
            continue
        share = 0.5 * math.erfc(-(r - mr) / sr / math.sqrt(2)) if soft else 1.0
        wp, wn = g * share * focus(x, mp, sp), g * share * focus(y, mn, sn)
        if warm:
            wp = wn = g
        for k, term in enumerate((wp * x, wp, wn * y, wn)):
            sums[k] += term
    return 0.9 * sums[0] / sums[1] - sums[2] / sums[3]


@pytest.mark.parametrize("soft", [True, False])
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_equals_the_loop_twin(soft: bool, warm: bool, weighted: bool) -> None:
    a, p = random_pairs(40, 8, seed=7, noise=0.3)
    weights = torch.linspace(0.2, 1.8, 40, dtype=torch.float64) if weighted else None
    batch = Pairs(a, p, torch.Generator(), progress=0.5, weights=weights)
    out = sdgm(**{**MAIN, "warmup": 0.6 if warm else 0.0}, soft=soft)(batch)
    given = [1.0] * 40 if weights is None else weights.tolist()
    expected = naive(a, p, out.negative.tolist(), given, soft, warm)
    assert float(out.loss) == pytest.approx(expected, abs=1e-12)


def test_gradient_is_the_modulated_one() -> None:
    loss = sdgm(**MAIN)
    a, p = descriptors()
    near = angles([0.3, 0.7, 0.5, 0.9]).requires_grad_()
    far = angles([1.0, 1.1, 0.8, 0.9]).requires_grad_()
    loss._update_statistics(near, far)
    weights = loss._weights(near, far, Pairs(a[:4], p[:4], torch.Generator(), progress=0.5))
    powers = torch.stack([w.sum() for w in weights])
    value = pseudo_loss((near, far), weights, powers, 0.9)
    g_near, g_far = torch.autograd.grad(value, (near, far))
    torch.testing.assert_close(g_near, 0.9 * weights[0] / powers[0])
    torch.testing.assert_close(g_far, -weights[1] / powers[1])
    assert float(g_near.abs().sum()) == pytest.approx(0.9)
    assert float(g_far.abs().sum()) == pytest.approx(1.0)
    assert not any(w.requires_grad for w in weights)


def test_gradcheck_with_weights_held(monkeypatch: pytest.MonkeyPatch) -> None:
    a, p = (x.requires_grad_() for x in random_pairs(9, 5, seed=3))
    w = torch.rand(2, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def value(anchors: torch.Tensor, positives: torch.Tensor) -> torch.Tensor:
        loss = sdgm(**MAIN)
        monkeypatch.setattr(loss, "_weights", lambda *_: (w[0], w[1]))
        output: LossOutput = loss(Pairs(anchors, positives, torch.Generator(), progress=0.5))
        return output.loss

    assert torch.autograd.gradcheck(value, (a, p))


@pytest.mark.parametrize(
    ("std", "expected"), [(0.2, (0.963, 0.858, 0.709)), (0.08, (0.991, 0.965, 0.924))]
)
def test_auto_focus_values(std: float, expected: tuple[float, ...]) -> None:
    mean = torch.tensor(0.8, dtype=torch.float64)
    theta = angles([0.8 + k * std for k in range(4)])
    weights = self_weight("auto_focus", theta, mean, torch.tensor(std, dtype=torch.float64))
    assert weights.tolist() == pytest.approx([1.0, *expected], abs=5e-4)


def test_other_self_weights_are_gradient_norms() -> None:
    theta = angles([0.3, 1.0])
    mean = std = torch.tensor(1.0)
    assert self_weight("theta", theta, mean, std).tolist() == [1.0, 1.0]
    torch.testing.assert_close(self_weight("s", theta, mean, std), torch.sin(theta))
    torch.testing.assert_close(self_weight("l2", theta, mean, std), torch.cos(theta / 2))


def test_share_of_active_triplets_for_a_normal_distribution() -> None:
    r = torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean, std = torch.tensor(0.0), torch.tensor(1.0)
    soft = margin_weight(r, mean, std, margin=0.6, soft=True)
    step = margin_weight(r, mean, std, margin=0.6, soft=False)
    assert float(soft.mean()) == pytest.approx(0.32, abs=0.003)
    assert float(step.mean()) == pytest.approx(0.40, abs=0.003)


def test_warm_up_gain() -> None:
    loss = sdgm(ema=0.001)
    a, p = random_pairs(64, 8, seed=0)
    for step in range(1, 51):
        loss(Pairs(a, p, torch.Generator(), progress=0.0))
        expected = 64 + (10000 - 64) * 0.999**step
        assert loss.powers.tolist() == pytest.approx([expected] * 2, rel=1e-9)


def test_rate_one_gives_batch_statistics_and_ema_the_mixture() -> None:
    first, second = random_pairs(30, 6, seed=1), random_pairs(30, 6, seed=2)
    now, slow = sdgm(**MAIN, ema=1.0), sdgm(**MAIN, ema=0.25)
    means = []
    for a, p in (first, second):
        batch = Pairs(a, p, torch.Generator(), progress=0.5)
        out = now(batch)
        slow(batch)
        mean, std = statistics(out.positive, out.negative)
        torch.testing.assert_close(now.mean, mean)
        torch.testing.assert_close(now.std, std)
        means.append(mean)
    torch.testing.assert_close(slow.mean, 0.75 * means[0] + 0.25 * means[1])


def test_statistics_use_n_minus_one() -> None:
    mean, std = statistics(angles([0.1, 0.3]), angles([1.0, 1.0]))
    assert mean.tolist() == pytest.approx([-0.8, 0.2, 1.0])
    assert std.tolist() == pytest.approx([math.sqrt(0.02), math.sqrt(0.02), 1e-6])


def test_powers_are_reset_when_the_warm_up_ends() -> None:
    loss = sdgm(warmup=0.2, reset_powers=True, power_init=0.0, ema=0.01, relaxed=0.0)
    a, p = random_pairs(64, 8, seed=0, noise=0.3)
    loss(Pairs(a, p, torch.Generator(), progress=0.1))
    assert loss.powers.tolist() == [64.0, 64.0]
    loss(Pairs(a, p, torch.Generator(), progress=0.2))
    assert float(loss.powers[0]) < 40
    before = loss.powers.clone()
    loss(Pairs(p, a, torch.Generator(), progress=0.3))
    assert float((loss.powers - before).abs().max()) < 1.0


@pytest.mark.parametrize("reset", [False, True])
def test_powers_wait_for_the_first_active_triplet(reset: bool) -> None:
    loss = sdgm(warmup=0.0, reset_powers=reset, power_init=0.0, ema=0.001, relaxed=0.0)
    # All triplets are equal, so that none is above the margin.
    equal = torch.eye(64, dtype=torch.float64)
    out = loss(Pairs(equal, equal, torch.Generator()))
    assert out.loss.item() == 0.0
    assert loss.powers.tolist() == [0.0, 0.0]
    loss.mean.zero_()
    a, p = random_pairs(64, 8, seed=0, noise=0.8)
    loss(Pairs(a, p, torch.Generator()))
    assert float(loss.powers.min()) > 0.5
    before = loss.powers.clone()
    loss(Pairs(p, a, torch.Generator()))
    assert float((loss.powers - before).abs().max()) < 0.1


def test_relaxed_until_the_negatives_are_far() -> None:
    loss = sdgm(relaxed=0.1, relaxed_angle=1.0)
    assert loss.ceiling(0.5) == 1 - 1e-5
    loss.seen += 1
    loss.mean[2] = 1.1
    assert loss.ceiling(0.5) == pytest.approx(math.cos(0.6))
    assert loss.ceiling(0.05) == 1 - 1e-5


@pytest.mark.parametrize("kind", ["theta", "s", "l2", "auto_focus"])
def test_without_power_adjustment(kind: SelfWeight) -> None:
    loss = sdgm(**MAIN, self_weight=kind, power_adjustment=False)
    out = loss(pairs())
    near = self_weight(kind, out.positive, loss.mean[1], loss.std[1])
    far = self_weight(kind, out.negative, loss.mean[2], loss.std[2])
    common = margin_weight(
        out.positive - out.negative, loss.mean[0], loss.std[0], margin=0.6, soft=True
    )
    expected = (common * (near * out.positive - far * out.negative)).sum() / 8
    assert float(out.loss) == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("kind", ["theta", "s", "l2"])
def test_self_weight_variants_have_the_gradient_of_their_distance(kind: SelfWeight) -> None:
    # &s weights theta so that its gradient is that of s itself, &l2 that of l.
    theta = angles([0.4, 0.9]).requires_grad_()
    weight = self_weight(kind, theta, torch.tensor(0.0), torch.tensor(1.0))
    found = torch.autograd.grad((weight * theta).sum(), theta)[0]
    distance = {
        "theta": lambda t: t,
        "s": lambda t: -torch.cos(t),
        "l2": lambda t: torch.sqrt(2 - 2 * torch.cos(t)),
    }[kind]
    expected = torch.autograd.grad(distance(theta).sum(), theta)[0]
    torch.testing.assert_close(found, expected)


def test_state_survives_and_no_gradient_comes_from_it() -> None:
    a, p = (x.requires_grad_() for x in random_pairs(20, 6, seed=1))
    loss, copy = sdgm(**MAIN), sdgm(**MAIN)
    loss(Pairs(a, p, torch.Generator(), progress=0.5))
    copy.load_state_dict(loss.state_dict())
    one = loss(Pairs(a, p, torch.Generator(), progress=0.6)).loss
    two = copy(Pairs(a, p, torch.Generator(), progress=0.6)).loss
    assert float(one.detach()) == float(two.detach())
    assert not any(b.requires_grad for b in loss.buffers())


def test_positive_angle_is_clamped() -> None:
    assert float(angle(torch.tensor(1.0, dtype=torch.float64))) == pytest.approx(
        math.acos(1 - 1e-5)
    )
