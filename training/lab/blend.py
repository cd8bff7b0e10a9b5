"""A finished run averaged with what it started from (Wortsman et al., WiSE-FT, 2022).

Training on makes a model better at what it is trained on and a little worse elsewhere. Weights
between the two keep most of both, at no cost in service. Batch statistics belong to weights, so
those of the average are measured anew.
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
from training.runs.checkpoint import start_network, write_tensors
from training.runs.run import (
    BLEND_ENTRY,
    RECIPE_FILE,
    SAMPLES_FILE,
    START_ENTRY,
    build_state,
    find_start,
    open_run,
)
from training.runs.validation import validate

_STATISTICS_BATCHES = 16


def blend(run_dir: Path, out: Path, share: float) -> dict[str, float]:
    """Write the run directory `out`: `share` of what `run_dir` learned, the rest of its start.

    Return FPR95 by validation store. The result is exported as any run is; to train on, another
    run starts from it.

    Raises:
        CheckpointError: `out` is there, `run_dir` is not finished or had no start, or what it
            started from is another file by now.
    """
    if out.exists():
        raise CheckpointError(f"{out}: there already")
    run = open_run(run_dir)
    if run.state.step < run.recipe.run.steps:
        raise CheckpointError(f"{run_dir}: not finished, its newest checkpoint is {run.state.step}")
    if not run.recipe.init_from:
        raise CheckpointError(f"{run_dir}: started from nothing to average it with")
    net = run.state.net
    # As the run was built: layers that its start did not have are drawn from its seed.
    start = build_state(run.recipe, net.patch_size, run.device).net
    source = find_start(run.recipe.init_from, run_dir)
    path, _ = start_network(start, source, run.recipe.seed)
    if hashlib.sha256(path.read_bytes()).hexdigest() != run.entries.get(START_ENTRY):
        raise CheckpointError(f"{path}: not what {run_dir} started from")
    net.load_state_dict(between(start.state_dict(), net.state_dict(), share))
    steps = range(run.recipe.run.steps, run.recipe.run.steps + _STATISTICS_BATCHES)
    measure_statistics(net, (run.to_device(run.batches.prepare(s).flatten(0, 1)) for s in steps))
    found = validate(net, run.validation, run.device)
    out.mkdir(parents=True)
    for name in (RECIPE_FILE, SAMPLES_FILE):
        shutil.copyfile(run_dir / name, out / name)
    line = {"step": run.state.step, **{f"fpr95/{name}": value for name, value in found.items()}}
    write_text_whole(out / "log.jsonl", json.dumps(line) + "\n")
    entries = {**run.entries, BLEND_ENTRY: share}
    write_tensors(out / "final.safetensors", run.network_tensors(), entries)
    return found


def between(
    start: Mapping[str, Tensor], end: Mapping[str, Tensor], share: float
) -> dict[str, Tensor]:
    """The weights at `share` of the way from `start` to `end`."""
    return {
        key: torch.lerp(start[key].to(value), value, share) if value.is_floating_point() else value
        for key, value in end.items()
    }


@torch.no_grad()
def measure_statistics(net: DescriptorNet, batches: Iterable[Tensor]) -> None:
    """Set the batch statistics of `net` to their mean over `batches`."""
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    rates = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's way to say: the mean of all
    net.train()
    for patches in batches:
        net.features(patches)
    net.eval()
    for norm, rate in zip(norms, rates, strict=True):
        norm.momentum = rate
