import math
from typing import Any

import pytest
import torch

from tests.unit.training.golden import pairs, random_pairs
from training.methods import METHODS
from training.methods.mining import random_partners
from training.methods.stochastic import draw_signs


def build(name: str, **changes: Any) -> Any:
    entry = METHODS[name]
    loss: Any = entry.build(entry.options(**changes), "linear", 7)
    return loss.double()


def test_stochastic_draws() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = draw_signs(4000, 2.0, generator, shared=False)
    assert set(drawn.flatten().tolist()) == {-2.0, 2.0}
    assert abs(float(drawn.mean())) < 0.1
    assert abs(float((drawn[0] * drawn[1]).mean())) < 0.2
    both = draw_signs(50, 2.0, generator, shared=True)
    assert both[0].tolist() == both[1].tolist()


@pytest.mark.parametrize(
    "name", ["stochastic_siamese", "stochastic_triplet", "contrastive", "plain_triplet"]
)
def test_random_negative_losses_equal_loops(name: str) -> None:
    anchors, positives = (3 * x for x in random_pairs(7, 4, seed=2))
    changes = {"theta": 0.0} if name.startswith("stochastic") else {}
    loss = build(name, **changes)
    out = loss(pairs(anchors=anchors, positives=positives))
    shift = next(
        s
        for s in range(1, 7)
        if all(
            abs(math.dist(anchors[i].tolist(), positives[(i + s) % 7].tolist()) - n) < 1e-6
            for i, n in enumerate(out.negative.tolist())
        )
    )
    total = 0.0
    for i in range(7):
        p = math.dist(anchors[i].tolist(), positives[i].tolist())
        n = math.dist(anchors[i].tolist(), positives[(i + shift) % 7].tolist())
        total += {
            "stochastic_siamese": (p - 1) ** 2 + (n - 3) ** 2,
            "stochastic_triplet": (p * p - n * n + 1) ** 2,
            "contrastive": p * p + max(3 - n, 0) ** 2,
            "plain_triplet": max(p * p - n * n + 1, 0),
        }[name]
    assert float(out.loss) == pytest.approx(total / 7, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("stochastic_siamese", {"theta": 2.0}),
        ("stochastic_triplet", {"theta": 0.5}),
        ("stochastic_triplet", {"theta": 0.5, "shared_draw": True}),
    ],
)
def test_noise_reaches_the_stochastic_losses(name: str, changes: dict[str, Any]) -> None:
    anchors, positives = (3 * x for x in random_pairs(7, 4, seed=2))
    batch = pairs(anchors=anchors, positives=positives)
    replay = torch.Generator().manual_seed(0)
    partner = random_partners(7, replay).tolist()
    shared = changes.get("shared_draw", False)
    noise = draw_signs(7, changes["theta"], replay, shared=shared).tolist()
    total = 0.0
    for i, (t, u) in enumerate(zip(*noise, strict=True)):
        p = math.dist(anchors[i].tolist(), positives[i].tolist())
        n = math.dist(anchors[i].tolist(), positives[partner[i]].tolist())
        total += {
            "stochastic_siamese": (p - 1 + t) ** 2 + (n - 3 + u) ** 2,
            "stochastic_triplet": ((p + t) ** 2 - (n + u) ** 2 + 1) ** 2,
        }[name]
    loss = build(name, **changes)(batch).loss
    assert float(loss) == pytest.approx(total / 7, rel=1e-6)
