"""How much of a bare loop's speed the training loop keeps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from training.runs.batches import ahead
from training.runs.loop import figures_of, train_step
from training.runs.recipe import Recipe
from training.runs.run import Run, create_run, open_run

_BLOCK = 8


@dataclass(frozen=True, slots=True)
class Throughput:
    """Patches per second of the training loop and of forward, backward, step on one fixed batch.

    `cpu_share` is the same comparison in processor time, which other work on the machine changes
    less than the clock.
    """

    loop: float
    bare: float
    cpu_share: float

    @property
    def share(self) -> float:
        """The loop's part of the bare speed by the clock."""
        return self.loop / self.bare


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one block, by the clock and of processors."""

    clock: float
    cpu: float


class _Stopwatch:
    def __init__(self) -> None:
        self.clock, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> Spent:
        return Spent(time.perf_counter() - self.clock, time.process_time() - self.cpu)


def measure(recipe: Recipe, out: Path, *, blocks: int = 8) -> Throughput:
    """Time both in alternating blocks of steps, so that a busy machine slows both alike.

    The loop's time includes drawing, loading, augmenting, mining, the loss and its figures. The
    bare loop has none of these: its loss is the distance of the outputs to fixed random ones.
    """
    run = open_run(create_run(recipe, out))
    # Warm up the allocator, the kernels' caches and the store's pages.
    _loop_block(run, 0, 3)
    fixed = run.batches.prepare(0)
    _bare_block(run, fixed, 3)
    loop: list[Spent] = []
    bare: list[Spent] = []
    for block in range(blocks):
        loop.append(_loop_block(run, block * _BLOCK, _BLOCK))
        bare.append(_bare_block(run, fixed, _BLOCK))
    patches = 2 * recipe.run.batch * _BLOCK
    return Throughput(
        loop=patches / median(b.clock for b in loop),
        bare=patches / median(b.clock for b in bare),
        cpu_share=median(b.cpu for b in bare) / median(b.cpu for b in loop),
    )


def _loop_block(run: Run, first: int, count: int) -> Spent:
    watch = _Stopwatch()
    for step, patches, _ in ahead(run.batches.prepare, first, first + count):
        output = train_step(run, step, patches, 1e-4)
        if step == first:
            figures_of(output)
    return watch.read()


def _bare_block(run: Run, patches: torch.Tensor, count: int) -> Spent:
    state = run.state
    pairs = run.to_device(patches[:, :2].transpose(0, 1).flatten(0, 1))
    target = torch.randn(len(pairs), state.net.dim, generator=torch.Generator().manual_seed(0))
    target = target.to(run.device)
    watch = _Stopwatch()
    for _ in range(count):
        loss = (state.net.features(pairs) - target).square().mean()
        state.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        state.optimizer.step()
    return watch.read()
