"""The losses of TFeat and L2-Net, against naive loops."""

import math

import numpy as np
import pytest
import torch

from training.methods import METHODS, Pairs
from training.methods.classic import (
    L2NetOptions,
    TFeatOptions,
    build_l2net,
    build_tfeat,
    correlation,
    relative_distance,
)
from training.methods.mining import random_partners


def descriptors(seed: int, rows: int = 9, dim: int = 5) -> torch.Tensor:
    values = torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)).double()
    return torch.nn.functional.normalize(values)


def some_pairs() -> Pairs:
    return Pairs(descriptors(1), descriptors(2), torch.Generator().manual_seed(4))


def test_relative_distance_is_the_softmax_of_rows_and_columns() -> None:
    distances = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)).double() * 2
    wanted = []
    for i in range(6):
        row = sum(math.exp(2 - float(distances[i, m])) for m in range(6))
        column = sum(math.exp(2 - float(distances[m, i])) for m in range(6))
        own = math.exp(2 - float(distances[i, i]))
        wanted.append(-0.5 * (math.log(own / row) + math.log(own / column)))
    np.testing.assert_allclose(relative_distance(distances), wanted, rtol=1e-12)


def test_correlation_is_that_of_numpy() -> None:
    rows = descriptors(3)
    matrix = np.corrcoef(rows.numpy().T)
    off = matrix[~np.eye(5, dtype=bool)]
    assert float(correlation(rows)) == pytest.approx(0.5 * (off**2).sum(), rel=1e-9)
    independent = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]]).double()
    assert float(correlation(independent)) == pytest.approx(0, abs=1e-9)


def test_l2net_adds_the_parts() -> None:
    pairs = some_pairs()
    distances = torch.sqrt(2 * (1 - pairs.anchors @ pairs.positives.T + 1e-6))
    first = relative_distance(distances).mean()
    second = (correlation(pairs.anchors) + correlation(pairs.positives)) / 9
    output = build_l2net(L2NetOptions(compactness=0.5), "unit", 9)(pairs)
    assert float(output.loss) == pytest.approx(float(first + 0.5 * second))
    assert output.negative.shape == (9,)


@pytest.mark.parametrize("swap", [False, True])
def test_tfeat_takes_the_nearer_of_anchor_and_positive(swap: bool) -> None:
    pairs = some_pairs()
    partner = random_partners(9, torch.Generator().manual_seed(4))
    values = []
    for i in range(9):
        other = pairs.positives[partner[i]]
        near = float((pairs.anchors[i] - pairs.positives[i]).norm())
        far = float((pairs.anchors[i] - other).norm())
        if swap:
            far = min(far, float((pairs.positives[i] - other).norm()))
        values.append(max(0.0, 1.5 + near - far))
    output = build_tfeat(TFeatOptions(margin=1.5, swap=swap), "unit", 9)(pairs)
    assert float(output.loss) == pytest.approx(np.mean(values), rel=1e-5)


@pytest.mark.parametrize("name", ["l2net", "tfeat"])
def test_the_gradient_is_that_of_finite_differences(name: str) -> None:
    loss = METHODS[name].build(METHODS[name].options(), "unit", 6)

    def value(anchors: torch.Tensor, positives: torch.Tensor) -> torch.Tensor:
        return loss(Pairs(anchors, positives, torch.Generator().manual_seed(2))).loss

    inputs = tuple(descriptors(seed, rows=6).requires_grad_() for seed in (5, 6))
    assert torch.autograd.gradcheck(value, inputs)
