"""Average the weights of a finished run with those it started from.

The method is WiSE-FT (Wortsman et al., 2022). Fine-tuning makes a model better on its training
data and a little worse elsewhere. Averaged weights keep most of both, at no cost in service. Batch
statistics depend on the weights, so they are measured again for the average.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from matchserve.files import write_text_whole
from training.errors import CheckpointError
from training.networks import DescriptorNet
from training.runs.checkpoint import BLEND_ENTRY, START_ENTRY, write_tensors
from training.runs.directory import FINAL_FILE, RECIPE_FILE, SAMPLES_FILE, find_start
from training.runs.run import build_state, open_run
from training.runs.validation import validate
from training.runs.weights import start_network

_STATISTICS_BATCHES = 16


def blend(run_dir: Path, out: Path, share: float) -> dict[str, float]:
    """Write the run directory `out` with the average of a run's weights and those it started from.

    `share` is the weight of the run in the average. Return FPR95 by validation store. `out` can be
    exported like any run; to train it further, start a new run from it.

    Raises:
        CheckpointError: `out` exists, `run_dir` is not finished or did not start from other
            weights, or these weights have changed.
    """
    if out.exists():
        raise CheckpointError(f"{out}: already exists; remove it or choose another name")
    run = open_run(run_dir)
    if run.state.step < run.recipe.run.steps:
        raise CheckpointError(
            f"{run_dir}: not finished: step {run.state.step} of {run.recipe.run.steps}"
        )
    if not run.recipe.init_from:
        raise CheckpointError(
            f"{run_dir}: has no init_from, so there are no weights to average with"
        )
    net = run.state.net
    # Built like the run: layers that its start did not have are initialised with its seed.
    start = build_state(run.recipe, net.patch_size, run.device).net
    source = find_start(run.recipe.init_from, run_dir)
    path, _ = start_network(start, source, run.recipe.seed)
    if hashlib.sha256(path.read_bytes()).hexdigest() != run.entries.get(START_ENTRY):
        raise CheckpointError(f"{path}: has changed since {run_dir} started from it")
    net.load_state_dict(between(start.state_dict(), net.state_dict(), share))
    steps = range(run.recipe.run.steps, run.recipe.run.steps + _STATISTICS_BATCHES)
    measure_statistics(net, (run.to_device(run.batches.prepare(s).flatten(0, 1)) for s in steps))
    rates = validate(net, run.validation, run.device)
    out.mkdir(parents=True)
    for name in (RECIPE_FILE, SAMPLES_FILE):
        shutil.copyfile(run_dir / name, out / name)
    line = {"step": run.state.step, **{f"fpr95/{name}": value for name, value in rates.items()}}
    write_text_whole(out / "log.jsonl", json.dumps(line) + "\n")
    entries = {**run.entries, BLEND_ENTRY: share}
    write_tensors(out / FINAL_FILE, run.network_tensors(), entries)
    return rates


def between(
    start: Mapping[str, Tensor], end: Mapping[str, Tensor], share: float
) -> dict[str, Tensor]:
    """Return (1 - share) * start + share * end; integers are taken from `end`."""
    return {
        key: torch.lerp(start[key].to(value), value, share) if value.is_floating_point() else value
        for key, value in end.items()
    }


@torch.no_grad()
def measure_statistics(net: DescriptorNet, batches: Iterable[Tensor]) -> None:
    """Set the batch normalisation statistics of `net` to their mean over `batches`."""
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    rates = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch then computes the mean of all batches
    net.train()
    for patches in batches:
        net.features(patches)
    net.eval()
    for norm, rate in zip(norms, rates, strict=True):
        norm.momentum = rate
