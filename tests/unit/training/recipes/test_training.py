"""Every shipped recipe trains: 20 steps with a narrow network and a small batch."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from training.methods import METHODS
from training.methods.contract import Pairs
from training.recipes.reading import shipped_recipes
from training.runs.directory import create_run
from training.runs.loop import train_step
from training.runs.recipe import load_recipe
from training.runs.run import Run, open_run
from training.runs.schedule import learning_rate

STEPS, BATCH = 20, 12
# Losses, samplers, augmentation and optimisers are those of the recipe. A batch holds all classes,
# so that 20 steps learn something.
SMALL = (
    "init_from=",
    'data.train=[{path="synthetic:1:12"}]',
    "data.validation=[]",
    "network.width=0.25",
    f"run.batch={BATCH}",
    f"run.steps={STEPS}",
    'run.device="cpu"',
    "run.threads=1",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one folder share a generated store."""
    return tmp_path_factory.mktemp("runs")


@torch.no_grad()
def loss_of(run: Run, patches: Tensor) -> float:
    """The loss of fixed patches at the beginning of training, without dropout and memory."""
    recipe, net = run.recipe, run.state.net
    net.train()
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    loss = METHODS[recipe.loss.name].build(recipe.loss, recipe.network.head, recipe.run.batch)
    anchors, positives = (net.features(patches[:, i]) for i in (0, 1))
    pairs = Pairs(
        anchors=net.apply_head(anchors),
        positives=net.apply_head(positives),
        generator=torch.Generator().manual_seed(0),
        features=torch.cat([anchors, positives]),
    )
    return loss(pairs).loss.item()


@pytest.mark.parametrize("name", shipped_recipes())
def test_the_loss_stays_finite_and_falls(name: str, folder: Path) -> None:
    shipped = load_recipe(name)
    # The usual rule for smaller batches.
    rate = shipped.optim.lr * math.sqrt(BATCH / shipped.run.batch)
    recipe = load_recipe(name, [*SMALL, f"optim.lr={rate}"])
    run = open_run(create_run(recipe, folder))
    fixed = run.batches.prepare(STEPS)
    before = loss_of(run, fixed)
    for step in range(STEPS):
        now = learning_rate(recipe.optim, step, STEPS)
        output = train_step(run, step, run.batches.prepare(step), now)
        assert math.isfinite(output.loss.item())
    after = loss_of(run, fixed)
    assert math.isfinite(after)
    assert after < before
