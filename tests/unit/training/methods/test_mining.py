import math

import pytest
import torch

from tests.unit.training.golden import descriptors, naive_negative, random_pairs
from training.methods.mining import (
    Mining,
    ceiling_from_angle,
    ceiling_from_distance,
    hamming,
    hardest_codes,
    hardest_similarity,
    random_partners,
    signs,
)


@pytest.mark.parametrize("mining", ["row_column", "all_four"])
@pytest.mark.parametrize("ceiling", [1 - 1e-5, 0.82534, 0.5])
def test_equals_the_loop_twin(mining: Mining, ceiling: float) -> None:
    for a, p in (descriptors(), random_pairs(20, 6, seed=3)):
        found = hardest_similarity(a, p, mining=mining, ceiling=ceiling)
        twin = naive_negative(a, p, mining, ceiling)
        assert found.tolist() == pytest.approx(twin, abs=1e-12)


@pytest.mark.parametrize("mining", ["row_column", "all_four"])
def test_permuting_pairs_permutes_and_swapping_sides_changes_nothing(mining: Mining) -> None:
    a, p = random_pairs(16, 8, seed=1)
    base = hardest_similarity(a, p, mining=mining, ceiling=0.9)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    moved = hardest_similarity(a[order], p[order], mining=mining, ceiling=0.9)
    torch.testing.assert_close(moved, base[order])
    torch.testing.assert_close(hardest_similarity(p, a, mining=mining, ceiling=0.9), base)


def test_the_diagonal_and_duplicates_are_never_chosen() -> None:
    a, p = random_pairs(12, 8, seed=2, noise=0.01)
    a[1], p[1] = a[0], p[0]
    ceiling = ceiling_from_distance(0.008)
    for mining in ("row_column", "all_four"):
        found = hardest_similarity(a, p, mining=mining, ceiling=0.95)
        assert float(found.max()) < 0.95
        assert float(hardest_similarity(a, p, mining=mining, ceiling=2.0)[0]) > 0.99
    assert ceiling == pytest.approx(1 - 3.2e-5)
    assert ceiling_from_angle(0.6) == pytest.approx(0.82534, abs=5e-6)


def test_a_pair_without_candidates_takes_the_least_similar_one() -> None:
    a = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.9, 0.43589]], dtype=torch.float64)
    for mining in ("row_column", "all_four"):
        found = hardest_similarity(a, a, mining=mining, ceiling=0.1)
        assert found.tolist() == pytest.approx([0.9, 0.9, 0.9])


def test_a_legal_candidate_of_either_side_comes_before_the_fallback() -> None:
    # a_0 has only discarded positives, p_0 a legal anchor at 0.2.
    def unit(degrees: float) -> list[float]:
        return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]

    a = torch.tensor([unit(0), unit(100), unit(90)], dtype=torch.float64)
    p = torch.tensor([unit(30), unit(10), unit(20)], dtype=torch.float64)
    found = hardest_similarity(a, p, mining="row_column", ceiling=0.55)
    assert float(found[0]) == pytest.approx(math.cos(math.radians(60)))


def test_codes_without_a_legal_negative_take_the_farthest_other() -> None:
    a = torch.ones(3, 8)
    p = torch.ones(3, 8)
    p[1, 0] = -1.0
    for swap in (False, True):
        chosen = hardest_codes(*((p, a) if swap else (a, p)), minimum_bits=2.0)
        index = torch.arange(3)
        assert bool((chosen.negative % 3 != index).all())
        assert int(chosen.negative[0] % 3) == 1
        assert bool((chosen.negative // 3 != chosen.anchor // 3).all())


def test_gradient_reaches_the_realising_descriptors_only() -> None:
    a, p = (x.requires_grad_() for x in random_pairs(10, 6, seed=5))
    hardest_similarity(a, p, mining="row_column", ceiling=2.0)[3].backward()
    assert a.grad is not None
    assert p.grad is not None
    touched = (a.grad.abs().sum(1) > 0).sum() + (p.grad.abs().sum(1) > 0).sum()
    assert int(touched) == 2


def test_hamming_and_codes() -> None:
    generator = torch.Generator().manual_seed(0)
    a, p = (signs(torch.randn(9, 16, generator=generator)) for _ in range(2))
    naive = [[int((x != y).sum()) for y in p] for x in a]
    assert hamming(a, p).tolist() == naive
    chosen = hardest_codes(a, p, minimum_bits=2.0)
    rows = torch.cat([a, p])
    for i in range(9):
        candidates = [(naive[i][j], "row", j) for j in range(9) if j != i and naive[i][j] >= 2] + [
            (naive[j][i], "column", j) for j in range(9) if j != i and naive[j][i] >= 2
        ]
        smallest = min(c[0] for c in candidates)
        found = hamming(rows[chosen.anchor[i]][None], rows[chosen.negative[i]][None])
        assert float(found) == smallest
        from_positive = int(chosen.anchor[i]) == i + 9
        assert from_positive == (min(c[0] for c in candidates if c[1] == "row") > smallest)
        assert {int(chosen.anchor[i]), int(chosen.positive[i])} == {i, i + 9}


def test_signs_of_zero_is_minus_one() -> None:
    assert signs(torch.tensor([[0.0, 0.1, -0.1]])).tolist() == [[-1.0, 1.0, -1.0]]


def test_random_partners_never_themselves() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        assert bool((random_partners(5, generator) != torch.arange(5)).all())
