"""Weights that a run keeps for good: the best ones, and those of every k steps."""

from __future__ import annotations

import math
from collections.abc import Mapping

from training.errors import CheckpointError
from training.runs.checkpoint import read_tensors, write_tensors
from training.runs.directory import BEST_FILE, KEPT_FOLDER
from training.runs.run import Run
from training.runtime import distributed

# Entry of the best weights: the mean FPR95 of the validation stores, as a share of 1.
RATE_ENTRY = "validation_fpr95"


def keep_best(run: Run, rates: Mapping[str, float]) -> None:
    """Write the weights if their mean FPR95 is the lowest of the run so far.

    `rates` is the FPR95 of each validation store; without stores there is no best.
    """
    if not rates:
        return
    rate = math.fsum(rates.values()) / len(rates)
    path = run.directory / BEST_FILE
    try:
        best = float(read_tensors(path).entries[RATE_ENTRY])
    except CheckpointError:
        best = math.inf
    if rate < best:
        entries = {**run.entries, "step": run.state.step, RATE_ENTRY: rate}
        write_tensors(path, run.network_tensors(), entries)


def keep_by_step(run: Run) -> None:
    """Write the weights if their step is a multiple of `run.keep_every`."""
    every, step = run.recipe.run.keep_every, run.state.step
    if not every or step % every or distributed.rank():
        return
    folder = run.directory / KEPT_FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"step-{step:09d}.safetensors"
    write_tensors(path, run.network_tensors(), {**run.entries, "step": step})
