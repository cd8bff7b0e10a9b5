"""How many bytes of bodies are held: in all, and of one client."""

from __future__ import annotations

import pytest

from matchserve.api.body import BodyBudget
from matchserve.errors import Overloaded


def test_one_client_cannot_hold_all_bytes() -> None:
    budget = BodyBudget(100, 50)
    budget.add(50, "one")
    with pytest.raises(Overloaded) as refused:
        budget.add(1, "one")
    assert refused.value.limit == 50
    budget.add(50, "other")
    with pytest.raises(Overloaded) as refused:
        budget.add(1, "third")
    assert refused.value.limit == 100
    assert budget.held == 100
    budget.release(50, "one")
    budget.add(20, "one")
    assert budget.held == 70


def test_without_a_limit_of_its_own_a_client_may_hold_all() -> None:
    budget = BodyBudget(100)
    budget.add(100, "one")
    with pytest.raises(Overloaded):
        budget.add(1, "one")
