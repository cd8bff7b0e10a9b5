"""One step of the loop, seen from inside: which rows the loss gets, and what moves after it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.training.tiny_runs import new_run
from training.methods import LossOutput, Pairs
from training.methods.adasample import AdaSample
from training.runs.loop import train_step
from training.runs.report import Pace
from training.runs.run import Run, open_run
from training.runs.schedule import build_optimizer


def test_the_pace_leaves_out_validation_and_counts_the_steps_done() -> None:
    times = iter([0.0, 10.0, 15.0, 45.0, 47.0, 48.0])
    pace = Pace(8, 100, lambda: next(times))
    pace.add_wait(2.5)
    assert pace.figures(120) == {"patches_per_s": 32.0, "data_wait": 0.25}
    # Five seconds of steps, thirty of validation, two of steps: three steps of a short end.
    with pace.pause():
        pass
    pace.add_wait(0.7)
    found = pace.figures(123)
    assert found == {"patches_per_s": pytest.approx(48 / 7), "data_wait": pytest.approx(0.1)}


CLASSES, CANDIDATES = 12, 4


class Naming(nn.Module):
    """A network that describes a patch by its grey level, which names its class and place."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def features(self, patches: torch.Tensor) -> torch.Tensor:
        level = patches.mean((1, 2, 3))
        return self.scale * torch.stack([level, torch.ones_like(level)], 1)

    def apply_head(self, features: torch.Tensor) -> torch.Tensor:
        return features

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.features(patches), dim=1)


class Recording:
    """A loss that keeps what it is given; its gradient at scale 1 is 2."""

    def __init__(self) -> None:
        self.given: list[Pairs] = []

    def __call__(self, pairs: Pairs) -> LossOutput:
        self.given.append(pairs)
        loss = pairs.anchors[:, 1].square().mean()
        return LossOutput(loss, torch.tensor([0.5]), torch.tensor([0.7]))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = open_run(
        new_run(
            tmp_path,
            loss={"name": "adasample"},
            sampler={"name": "adasample", "candidates": CANDIDATES, "rate": 0.25},
            optim={"momentum": 0.0, "weight_decay": 0.0},
        )
    )
    state: Any = made.state
    net, state.loss = Naming(), Recording()
    state.net, made.features = net, net.features
    made.state.optimizer = build_optimizer(made.recipe.optim, net.parameters())
    return made


def test_a_step_gives_the_loss_rows_of_one_class_and_moves_what_it_should(run: Run) -> None:
    levels = 10.0 * torch.arange(CLASSES)[:, None] + torch.arange(CANDIDATES)
    patches = levels[:, :, None, None, None].expand(-1, -1, 1, 32, 32)
    train_step(run, 3, patches, 0.25)
    assert isinstance(run.state.loss, Recording)
    (pairs,) = run.state.loss.given
    anchors, positives = pairs.anchors[:, 0].round(), pairs.positives[:, 0].round()
    assert anchors.tolist() == levels[:, 0].tolist()
    assert (positives // 10).tolist() == list(range(CLASSES))
    assert bool((positives % 10 >= 1).all())
    torch.testing.assert_close(pairs.features, torch.cat([pairs.anchors, pairs.positives]))
    assert pairs.progress == 0.5
    assert pairs.weights is not None
    assert float(pairs.weights.mean()) == pytest.approx(1.0)
    assert run.state.optimizer.param_groups[0]["lr"] == 0.25
    assert float(run.state.net.get_parameter("scale").detach()) == pytest.approx(1.0 - 0.25 * 2.0)
    hinge = 1.0 + 0.5**2 - 0.7**2
    assert isinstance(run.state.sampler, AdaSample)
    assert float(run.state.sampler.average_loss) == pytest.approx(0.75 + 0.25 * hinge)
