"""A run opened for training: its stores, network, loss, sampler and newest checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from matchserve.files import remove_leftovers, write_whole
from matchserve.types import UInt8
from training.data.store.reader import PatchStore, spec_to_json
from training.errors import CheckpointError, RecipeError
from training.methods import METHODS, SAMPLERS
from training.methods.contract import PairLoss
from training.networks import build_network
from training.runs.batches import Batches, split_batch
from training.runs.checkpoint import (
    BLEND_ENTRY,
    START_ENTRY,
    Checkpoints,
    TrainState,
    read_tensors,
)
from training.runs.crop import refuse_other_crop
from training.runs.directory import (
    FINAL_FILE,
    RECIPE_FILE,
    SAMPLES_FILE,
    find_start,
    read_recipe,
)
from training.runs.plugins import plugin_code
from training.runs.precision import LossScale, amp_type
from training.runs.recipe import Recipe, identity
from training.runs.schedule import build_optimizer
from training.runs.sources import open_sources, refuse_other_size, refuse_shared_classes
from training.runs.validation import ValidationSet, validation_sets
from training.runs.weights import start_network
from training.runtime import distributed
from training.runtime.randomness import Stream, numpy_stream, stream_seed

SAMPLE_COUNT = 1024


@dataclass(slots=True, eq=False)
class Run:
    """A run opened for training.

    `entries` are stored in every weights file of the run; `notes` are messages for the user.
    """

    directory: Path
    recipe: Recipe
    device: torch.device
    state: TrainState
    batches: Batches
    validation: list[ValidationSet]
    features: Callable[[Tensor], Tensor]
    entries: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    amp: torch.dtype | None = None

    def prepare(self, step: int) -> Tensor:
        """Load and augment this process's patches of a step, on the device."""
        return self.batches.prepare(step, self.device)

    def to_device(self, patches: Tensor) -> Tensor:
        """Move patches to the device, in the memory layout of the recipe."""
        if patches.dim() == 4 and self.recipe.run.channels_last:
            return patches.to(self.device, memory_format=torch.channels_last, non_blocking=True)
        return patches.to(self.device, non_blocking=True)

    def network_tensors(self) -> dict[str, Tensor]:
        """Return the network's weights under the names that files use."""
        return {f"net.{k}": v for k, v in self.state.net.state_dict().items()}


def open_run(run_dir: Path) -> Run:
    """Open the stores, build network, loss and sampler, and restore the newest checkpoint.

    Raises:
        RecipeError, DataError, CheckpointError: the message names the file.
    """
    recipe = read_recipe(run_dir)
    _refuse_blend(run_dir)
    device = choose_device(recipe)
    if recipe.run.threads:
        torch.set_num_threads(recipe.run.threads)
    cache = run_dir.parent / "stores"
    train_stores = open_sources(recipe.data.train, cache)
    if not train_stores:
        raise RecipeError(f"{run_dir / RECIPE_FILE}: data.train: expected at least one store")
    refuse_shared_classes(train_stores)
    validation = open_sources(recipe.data.validation, cache)
    refuse_other_size(validation, train_stores[0])
    state = build_state(recipe, train_stores[0].spec.size, device)
    entries = {
        "recipe": recipe.model_dump(),
        "recipe_id": recipe.recipe_id,
        "patch_spec": spec_to_json(train_stores[0].spec),
        "training_data": [{"made_by": s.made_by, "digest": s.digest} for s in train_stores],
        "plugins": plugin_code({recipe.loss.name, recipe.sampler.name, recipe.network.name}),
    }
    notes = _restore(run_dir, entries, state, train_stores)
    if recipe.init_from and not state.step:
        refuse_other_crop(find_start(recipe.init_from, run_dir), train_stores[0])
        notes += _start_from(run_dir, recipe.init_from, entries, state)
    write_samples(run_dir, recipe, train_stores)
    features = state.net.features
    return Run(
        directory=run_dir,
        recipe=recipe,
        device=device,
        state=state,
        batches=build_batches(recipe, train_stores, state.sampler.candidates),
        validation=validation_sets(validation, recipe.data.validation_pairs),
        features=torch.compile(features) if recipe.run.compile else features,
        entries=entries,
        notes=notes,
        amp=amp_type(device) if recipe.run.amp else None,
    )


def choose_device(recipe: Recipe) -> torch.device:
    """Return the device that the recipe selects.

    Raises:
        RecipeError: CUDA is selected but not available, or mixed precision without CUDA.
    """
    wanted = recipe.run.device
    has_cuda = torch.cuda.is_available()
    name = "cuda" if wanted == "cuda" or (wanted == "auto" and has_cuda) else "cpu"
    if name == "cuda" and not has_cuda:
        raise RecipeError(f"run.device: cuda is not available: {_why_no_cuda()}")
    if recipe.run.amp and name == "cpu":
        raise RecipeError("run.amp: mixed precision needs CUDA; on a CPU it is ten times slower")
    if name == "cuda":
        index = distributed.local_rank()
        if index >= torch.cuda.device_count():
            raise RecipeError(
                f"run.device: process {index} of this machine has no device of its own; "
                f"start at most {torch.cuda.device_count()} with torchrun --nproc-per-node"
            )
        torch.cuda.set_device(index)
        # Mixed precision is not exact from run to run, so the fastest kernels may be chosen.
        torch.backends.cudnn.benchmark = recipe.run.amp
        return torch.device("cuda", index)
    return torch.device("cpu")


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA; install its CUDA build"
    return (
        f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no device; "
        "compare nvidia-smi and CUDA_VISIBLE_DEVICES"
    )


def build_state(recipe: Recipe, patch_size: int, device: torch.device) -> TrainState:
    """Build network, optimiser, loss and sampler, initialised with the recipe's seed."""
    torch.manual_seed(stream_seed(recipe.seed, 0, Stream.WEIGHTS))
    net = build_network(recipe.network, patch_size)
    layout = torch.channels_last if recipe.run.channels_last else torch.contiguous_format
    net = net.to(device, memory_format=layout)  # type: ignore[call-overload]
    loss = _build_loss(recipe)
    sampler = SAMPLERS[recipe.sampler.name].build(recipe.sampler)
    loss.to(device)
    sampler.to(device)
    scale = None
    if recipe.run.amp and amp_type(device) == torch.float16:
        scale = LossScale().to(device)
    optimizer = build_optimizer(recipe.optim, net.parameters())
    return TrainState(0, net, optimizer, loss, sampler, scale)


def _build_loss(recipe: Recipe) -> PairLoss:
    try:
        return METHODS[recipe.loss.name].build(recipe.loss, recipe.network.head, recipe.run.batch)
    except TypeError as error:
        raise RecipeError(
            f"loss.name: {recipe.loss.name!r} cannot be built from its options, the head and the "
            f"number of pairs: {error}"
        ) from error


def build_batches(recipe: Recipe, stores: list[PatchStore], candidates: int) -> Batches:
    """Build the batches of `recipe` from open stores.

    Raises:
        RecipeError: the batch cannot be split over the processes or the stores.
    """
    if recipe.run.batch % distributed.world_size():
        raise RecipeError(
            f"run.batch: {recipe.run.batch} pairs cannot be divided evenly among "
            f"{distributed.world_size()} processes"
        )
    shares = split_batch([source.weight for source in recipe.data.train], recipe.run.batch)
    for source, share in zip(recipe.data.train, shares, strict=True):
        if not share:
            raise RecipeError(
                f"data.train: {source.path}: with weight {source.weight} it gets no pair of a "
                f"batch of {recipe.run.batch}"
            )
    sampler = recipe.sampler
    return Batches(
        stores=stores,
        shares=shares,
        seed=recipe.seed,
        candidates=candidates,
        order=sampler.order,
        neighbours=sampler.neighbours,
        augmentation=recipe.augment,
        copy_rotation_deg=sampler.copy_rotation_deg,
    )


def write_samples(run_dir: Path, recipe: Recipe, stores: list[PatchStore]) -> None:
    """Store some training patches in the run, for the parity check and calibration of exports."""
    path = run_dir / SAMPLES_FILE
    if path.exists() or distributed.rank():
        return
    buffer = BytesIO()
    np.save(buffer, draw_samples(stores, recipe.seed))
    write_whole(path, buffer.getvalue())


def draw_samples(stores: Sequence[PatchStore], seed: int) -> UInt8:
    """Draw `SAMPLE_COUNT` patches at random, equally many from each store."""
    rng = numpy_stream(seed, 0, Stream.VALIDATION)
    rows: list[UInt8] = []
    for store, share in zip(stores, split_batch([1.0] * len(stores), SAMPLE_COUNT), strict=True):
        classes = rng.integers(0, len(store), share)
        member = rng.integers(0, store.class_sizes[classes])
        rows.append(store.patches(store.class_starts[classes] + member))
    return np.concatenate(rows)


def _refuse_blend(run_dir: Path) -> None:
    final = run_dir / FINAL_FILE
    if final.exists() and BLEND_ENTRY in read_tensors(final).entries:
        raise CheckpointError(
            f"{run_dir}: averaged weights (made by blend) cannot be resumed; start a new run with "
            "init_from instead"
        )


def _restore(
    run_dir: Path, entries: dict[str, Any], state: TrainState, stores: Sequence[PatchStore]
) -> list[str]:
    checkpoints = Checkpoints(run_dir / "checkpoints")
    if not distributed.rank():
        # All processes have met by now, so nothing that is being written is deleted.
        checkpoints.clean_up()
        remove_leftovers(run_dir)
    stored, skipped = checkpoints.newest()
    notes = [f"skipped a damaged checkpoint: {message}" for message in skipped]
    if stored is None:
        return notes
    if identity(stored.entries["recipe"]) != entries["recipe_id"]:
        other = json.dumps(stored.entries.get("recipe_id"))
        raise CheckpointError(
            f"{run_dir}: its checkpoints belong to the recipe {other}, but its recipe.toml is "
            f"{entries['recipe_id']}; restore the file, or train the changed recipe in a new run"
        )
    _refuse_other_data(run_dir, stored.entries.get("training_data", []), stores)
    _refuse_other_code(run_dir, stored.entries.get("plugins", {}), entries["plugins"])
    try:
        state.restore(stored.tensors, int(stored.entries["step"]))
    except CheckpointError as error:
        raise CheckpointError(f"{stored.path}: {error.message}") from error
    if START_ENTRY in stored.entries:
        entries[START_ENTRY] = stored.entries[START_ENTRY]
    return [*notes, f"resumed at step {state.step}"]


def _refuse_other_data(
    run_dir: Path, trained_on: Sequence[dict[str, Any]], stores: Sequence[PatchStore]
) -> None:
    for before, store in zip(trained_on, stores, strict=False):
        if before["digest"] != store.digest:
            raise CheckpointError(
                f"{store.path}: not the patches that {run_dir} was trained on so far: digest "
                f"{store.digest[:12]}, in the checkpoint {str(before['digest'])[:12]}"
            )


def _refuse_other_code(run_dir: Path, before: dict[str, str], now: dict[str, str]) -> None:
    for name, digest in before.items():
        if now.get(name) != digest:
            raise CheckpointError(
                f"{run_dir}: the code of the plug-in {name!r} has changed since this run began; "
                "train the new code in another folder with --out, or delete this run"
            )


def _start_from(
    run_dir: Path, init_from: str, entries: dict[str, Any], state: TrainState
) -> list[str]:
    source = find_start(init_from, run_dir)
    path, changed = start_network(state.net, source, read_recipe(run_dir).seed)
    entries[START_ENTRY] = hashlib.sha256(path.read_bytes()).hexdigest()
    notes = [f"started from {path}" + (f", {changed}" if changed else "")]
    if path.parent.name == "checkpoints":
        notes.append(f"{path.parent.parent}: not finished; its newest checkpoint is used")
    return notes
