"""Measure the overhead of the training loop, and the time to prepare batches alone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from training.runs.batches import ahead
from training.runs.directory import create_run
from training.runs.loop import loss_figures, train_step
from training.runs.recipe import Recipe
from training.runs.run import Run, open_run

_BLOCK = 8


@dataclass(frozen=True, slots=True)
class Throughput:
    """Patches per second of the training loop, and of bare steps on one fixed batch.

    A bare step is forward, backward and optimiser. `cpu_share` is the ratio of the two in processor
    time, which other work on the machine affects less than wall-clock time.
    """

    loop: float
    bare: float
    cpu_share: float

    @property
    def share(self) -> float:
        """Speed of the training loop divided by that of bare steps, in wall-clock time."""
        return self.loop / self.bare


@dataclass(frozen=True, slots=True)
class BlockTime:
    """Seconds that one block of steps took: wall-clock time and processor time."""

    wall: float
    cpu: float


class _Stopwatch:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> BlockTime:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the device has not finished all steps yet
        return BlockTime(time.perf_counter() - self.wall, time.process_time() - self.cpu)


def measure(recipe: Recipe, out: Path, *, blocks: int = 8) -> Throughput:
    """Time both in alternating blocks of steps, so that other work slows both equally.

    The time of the loop includes choosing, loading and augmenting patches, mining, the loss and its
    figures. A bare step has none of these: its loss is the distance to fixed random outputs.
    """
    run = open_run(create_run(recipe, out))
    # Warm up the allocator, the kernel caches and the pages of the store.
    _loop_block(run, 0, 3)
    fixed = run.batches.prepare(0)
    _bare_block(run, fixed, 3)
    loop: list[BlockTime] = []
    bare: list[BlockTime] = []
    for block in range(blocks):
        loop.append(_loop_block(run, block * _BLOCK, _BLOCK))
        bare.append(_bare_block(run, fixed, _BLOCK))
    patches = 2 * recipe.run.batch * _BLOCK
    return Throughput(
        loop=patches / median(b.wall for b in loop),
        bare=patches / median(b.wall for b in bare),
        cpu_share=median(b.cpu for b in bare) / median(b.cpu for b in loop),
    )


def measure_data(recipe: Recipe, out: Path, *, repeats: int = 7) -> float:
    """Return the processor seconds that choosing, loading and augmenting one batch takes.

    The best of `repeats` batches counts, on one thread, because other work only adds to it.
    """
    run = open_run(create_run(recipe, out))
    torch.set_num_threads(1)
    times = []
    for step in range(repeats + 1):
        began = time.process_time()
        run.batches.prepare(step)
        times.append(time.process_time() - began)
    # The first batch reads the pages of the store.
    return min(times[1:])


def _loop_block(run: Run, first: int, count: int) -> BlockTime:
    watch = _Stopwatch(run.device)
    for step, patches, _ in ahead(
        run.prepare, first, first + count, workers=run.recipe.run.workers
    ):
        output = train_step(run, step, patches, 1e-4)
        if step == first:
            loss_figures(output)
    return watch.read()


def _bare_block(run: Run, patches: torch.Tensor, count: int) -> BlockTime:
    state = run.state
    pairs = run.to_device(patches[:, :2].transpose(0, 1).flatten(0, 1))
    target = torch.randn(len(pairs), state.net.dim, generator=torch.Generator().manual_seed(0))
    target = target.to(run.device)
    watch = _Stopwatch(run.device)
    for _ in range(count):
        loss = (state.net.features(pairs) - target).square().mean()
        state.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        state.optimizer.step()
    return watch.read()
