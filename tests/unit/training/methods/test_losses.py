import math
from collections.abc import Callable

import pytest
import torch

from tests.unit.training.golden import random_pairs
from training.methods import losses
from training.methods.baselines import second_order_distance

ANGLES = torch.tensor([0.2, 0.9, 1.4], dtype=torch.float64)


def distances(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(2, 11, generator=generator, dtype=torch.float64) * 1.5
    return drawn[0], drawn[1]


NOISE = torch.tensor([[0.5] * 6 + [-0.5] * 5, [-0.5] * 4 + [0.5] * 7], dtype=torch.float64)


@pytest.mark.parametrize(
    ("loss", "twin"),
    [
        (lambda p, n: losses.hinge(p, n, margin=1.0), lambda p, n, _: max(0, 1 + p - n)),
        (
            lambda p, n: losses.squared_hinge(p, n, margin=0.3),
            lambda p, n, _: max(0, 0.3 + p * p - n * n),
        ),
        (losses.softplus, lambda p, n, _: math.log1p(math.exp(p - n))),
        (
            lambda p, n: losses.contrastive(p, n, margin=1.2),
            lambda p, n, _: p * p + max(1.2 - n, 0) ** 2,
        ),
        (
            lambda p, n: losses.siamese(p, n, positive_margin=1, margin=2, noise=NOISE),
            lambda p, n, t: (p - 1 + t[0]) ** 2 + (n - 3 + t[1]) ** 2,
        ),
        (
            lambda p, n: losses.square_triplet(p, n, margin=1, noise=NOISE),
            lambda p, n, t: ((p + t[0]) ** 2 - (n + t[1]) ** 2 + 1) ** 2,
        ),
    ],
)
def test_equals_the_loop_twin_and_gradcheck(
    loss: Callable[..., torch.Tensor], twin: Callable[..., float]
) -> None:
    positive, negative = distances()
    noise = NOISE.T.tolist()
    expected = [
        twin(p, n, t) for p, n, t in zip(positive.tolist(), negative.tolist(), noise, strict=True)
    ]
    assert loss(positive, negative).tolist() == pytest.approx(expected, abs=1e-12)
    assert torch.autograd.gradcheck(loss, (positive.requires_grad_(), negative.requires_grad_()))


def test_hybrid_and_hardest_fraction() -> None:
    cosine = torch.cos(ANGLES)
    expected = [math.sqrt(2 - 2 * c + 2e-6) + 2 * (1 - c) for c in cosine.tolist()]
    assert losses.hybrid(cosine, alpha=2.0).tolist() == pytest.approx(expected)
    assert torch.autograd.gradcheck(
        lambda c: losses.hybrid(c, alpha=2.0), (cosine.requires_grad_(),)
    )
    values = torch.arange(10.0)
    order = torch.tensor([0, 9, 1, 8, 2, 7, 3, 6, 4, 5.0])
    kept = losses.hardest_fraction(values, order, divisor=4)
    assert sorted(kept.tolist()) == [1.0, 3.0]


def _norm_of_gradient(
    measure: Callable[..., torch.Tensor], x: torch.Tensor, y: torch.Tensor
) -> tuple[float, float]:
    """Norm of d measure / dx by finite differences, and its part along x."""
    gradient = torch.zeros_like(x)
    for k in range(len(x)):
        step = torch.zeros_like(x)
        step[k] = 1e-5
        gradient[k] = (measure(x + step, y) - measure(x - step, y)) / 2e-5
    return float(gradient.norm()), float(gradient @ x)


@pytest.mark.parametrize("theta", [0.2, 0.9, 2.0])
def test_gradient_norms_of_the_three_distances(theta: float) -> None:
    x = torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64)
    y = torch.tensor([math.cos(theta), math.sin(theta), 0.0], dtype=torch.float64)

    def cosine(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.dot(u / u.norm(), v / v.norm())

    s = math.cos(theta)
    length = math.sqrt(2 - 2 * s)
    cases = [
        (lambda u, v: torch.acos(cosine(u, v)), 1 / 2),
        (cosine, math.sqrt(1 - s * s) / 2),
        (
            lambda u, v: torch.sqrt(2 - 2 * cosine(u, v)),
            math.sqrt(4 * length**2 - length**4) / (2 * length) / 2,
        ),
    ]
    for measure, expected in cases:
        norm, along = _norm_of_gradient(measure, x, y)
        assert norm == pytest.approx(expected, abs=1e-9)
        assert along == pytest.approx(0, abs=1e-9)
    assert cases[2][1] == pytest.approx(math.cos(theta / 2) / 2)


def test_angle_is_clamped_without_gradient() -> None:
    cosine = torch.tensor([1.0, -1.0, 0.0], requires_grad=True)
    losses.angle(cosine).sum().backward()
    assert cosine.grad is not None
    assert cosine.grad.tolist() == [0.0, 0.0, -1.0]


def test_row_and_code_distance() -> None:
    a, p = random_pairs(5, 3, seed=0)
    expected = [math.dist(x, y) for x, y in zip(a.tolist(), p.tolist(), strict=True)]
    assert losses.row_distance(a, p).tolist() == pytest.approx(expected, abs=1e-6)
    left = torch.tensor([[1.0, -1, 1, 1]])
    right = torch.tensor([[1.0, 1, 1, -1]])
    assert float(losses.code_distance(left, right)) == 2 * 2 / 4


def test_stochastic_siamese_is_unbiased() -> None:
    positive, negative = (d.requires_grad_() for d in distances())
    zero = torch.zeros(2, 11, dtype=torch.float64)

    def gradient(noise: torch.Tensor) -> list[torch.Tensor]:
        value = losses.siamese(positive, negative, positive_margin=1, margin=2, noise=noise)
        return list(torch.autograd.grad(value.sum(), (positive, negative)))

    plus, minus, none = gradient(zero + 2.0), gradient(zero - 2.0), gradient(zero)
    for up, down, base in zip(plus, minus, none, strict=True):
        torch.testing.assert_close((up + down) / 2, base, rtol=0, atol=1e-14)


def test_stochastic_siamese_expectation_and_covariance() -> None:
    positive, negative = (d[:1].requires_grad_() for d in distances())
    theta, gradients, values = 0.7, [], []
    for t0 in (-theta, theta):
        for t1 in (-theta, theta):
            noise = torch.tensor([[t0], [t1]], dtype=torch.float64)
            value = losses.siamese(positive, negative, positive_margin=1, margin=2, noise=noise)
            values.append(float(value.detach().sum()))
            drawn = torch.autograd.grad(value.sum(), (positive, negative))
            gradients.append(torch.cat(drawn) / 2)
    plain = losses.siamese(
        positive, negative, positive_margin=1, margin=2, noise=torch.zeros(2, 1).double()
    )
    assert sum(values) / 4 - float(plain.detach()) == pytest.approx(
        2 * theta**2
    )  # one per pair of pairs
    covariance = torch.cov(torch.stack(gradients).T, correction=0)
    torch.testing.assert_close(covariance, theta**2 * torch.eye(2, dtype=torch.float64))


def _triplet_moments(draws: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Mean loss and mean gradient at d+ = .7, d- = 1.3, m = 1."""
    total = torch.zeros(3, dtype=torch.float64)
    for t0, t1 in draws:
        positive = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
        negative = torch.tensor([1.3], dtype=torch.float64, requires_grad=True)
        noise = torch.tensor([[t0], [t1]], dtype=torch.float64)
        value = losses.square_triplet(positive, negative, margin=1.0, noise=noise).sum()
        gradient = torch.autograd.grad(value, (positive, negative))
        total += torch.stack([value.detach(), gradient[0][0], gradient[1][0]])
    mean = total / len(draws)
    return float(mean[0]), float(mean[1]), float(mean[2])


def test_stochastic_triplet_is_biased_as_computed() -> None:
    t = 0.5
    base = _triplet_moments([(0.0, 0.0)])
    assert base[1:] == pytest.approx((-0.56, 1.04))
    independent = _triplet_moments([(a, b) for a in (-t, t) for b in (-t, t)])
    assert independent[1:] == pytest.approx((0.84, 3.64))
    shared = _triplet_moments([(-t, -t), (t, t)])
    assert shared[1:] == pytest.approx((-1.76, 2.24))
    assert independent[0] - base[0] == pytest.approx(2.18)
    assert shared[0] - base[0] == pytest.approx(0.36)


def test_triplet_sign_is_the_corrected_one() -> None:
    m = 2.0
    zero = torch.zeros(2, 1, dtype=torch.float64)
    positive = torch.zeros(1, dtype=torch.float64)
    negative = torch.tensor([math.sqrt(m)], dtype=torch.float64)
    right = losses.square_triplet(positive, negative, margin=m, noise=zero)
    printed = losses.square_triplet(positive, negative, margin=-m, noise=zero)
    assert float(right) == pytest.approx(0.0)
    assert float(printed) == pytest.approx(4 * m * m)


def test_weighted_mean() -> None:
    values = torch.tensor([1.0, 3.0])
    assert float(losses.weighted_mean(values, None)) == 2.0
    assert float(losses.weighted_mean(values, torch.tensor([2.0, 0.0]))) == 1.0


def test_second_order_distance_equals_loops() -> None:
    torch.manual_seed(0)
    anchors, positives = (
        torch.nn.functional.normalize(torch.randn(9, 5, dtype=torch.float64), dim=1)
        for _ in range(2)
    )
    found = second_order_distance(anchors, positives, neighbours=2)
    for i in range(9):
        others = [j for j in range(9) if j != i]
        near = {j: (anchors[i] - anchors[j]).norm().item() for j in others}
        far = {j: (positives[i] - positives[j]).norm().item() for j in others}
        chosen = {j for d in (near, far) for j in sorted(others, key=d.__getitem__)[:2]}
        expected = sum((near[j] - far[j]) ** 2 for j in chosen) ** 0.5
        assert found[i].item() == pytest.approx(expected, abs=1e-4)
    assert second_order_distance(anchors, anchors, neighbours=2).max() < 2e-4


def test_second_order_distance_has_finite_gradients() -> None:
    torch.manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(6, 4), dim=1).requires_grad_()
    second_order_distance(rows, rows.detach().flip(1), neighbours=8).sum().backward()
    assert rows.grad is not None
    assert torch.isfinite(rows.grad).all()
