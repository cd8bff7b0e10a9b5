"""A run: a directory with a recipe, and everything built from it that training needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from matchserve.files import remove_leftovers, write_text_whole, write_whole
from matchserve.types import UInt8
from training.data.store.reader import PatchStore, spec_to_json
from training.errors import CheckpointError, RecipeError
from training.methods import METHODS
from training.methods.samplers import SAMPLERS, AdaSampleSamplerOptions
from training.networks import build_network
from training.runs.batches import Batches, shares_of
from training.runs.checkpoint import (
    Checkpoints,
    TrainState,
    find_run,
    read_tensors,
    start_network,
)
from training.runs.recipe import Recipe, check_recipe, parse_recipe
from training.runs.schedule import build_optimizer
from training.runs.sources import open_sources
from training.runs.toml import read_toml
from training.runs.validation import ValidationSet, validation_sets
from training.runtime import distributed
from training.runtime.randomness import Stream, numpy_stream, stream_seed

RECIPE_FILE = "recipe.toml"
SAMPLES_FILE = "samples.npy"
SAMPLE_COUNT = 1024
# The entry of a file of weights that names the weights it was fine-tuned from.
START_ENTRY = "init_from_sha256"
# The entry of weights that lie between those of a run and those it started from.
BLEND_ENTRY = "blend_share"


@dataclass(slots=True, eq=False)
class Run:
    """A run opened for training. `entries` go into every file of weights it writes."""

    directory: Path
    recipe: Recipe
    device: torch.device
    state: TrainState
    batches: Batches
    validation: list[ValidationSet]
    features: Callable[[Tensor], Tensor]
    entries: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def to_device(self, patches: Tensor) -> Tensor:
        """Move patches to the device, in the layout the recipe asks for."""
        if patches.dim() == 4 and self.recipe.run.channels_last:
            return patches.to(self.device, memory_format=torch.channels_last)
        return patches.to(self.device)

    def network_tensors(self) -> dict[str, Tensor]:
        """Return the network's weights as they are saved."""
        return {f"net.{k}": v for k, v in self.state.net.state_dict().items()}


def create_run(recipe: Recipe, out: Path) -> Path:
    """Make the run directory `out/NAME-ID` with its resolved recipe; return it if it is there."""
    directory = out / f"{recipe.name}-{recipe.recipe_id}"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / RECIPE_FILE
    # The first rank writes; the others only read once all have met. A file that is there and
    # empty is what a kill can leave of a write that was not all or nothing.
    is_missing = not path.exists() or not path.stat().st_size
    if is_missing and distributed.launched_rank() == 0:
        write_text_whole(path, recipe.to_toml())
    return directory


def read_recipe(run_dir: Path) -> Recipe:
    """Return the recipe that a run directory was made with."""
    path = run_dir / RECIPE_FILE
    # Not checked again: a run made before a check was added must still be exported.
    return parse_recipe(read_toml(path), str(path))


def open_run(run_dir: Path) -> Run:
    """Open stores, build the network, loss and sampler, and restore the newest checkpoint.

    Raises:
        RecipeError, DataError, CheckpointError: with the file that is at fault.
    """
    recipe = read_recipe(run_dir)
    check_recipe(recipe, str(run_dir / RECIPE_FILE))
    _refuse_blend(run_dir)
    device = choose_device(recipe)
    if recipe.run.threads:
        torch.set_num_threads(recipe.run.threads)
    cache = run_dir.parent / "stores"
    train_stores = open_sources(recipe.data.train, cache)
    if not train_stores:
        raise RecipeError(f"{run_dir / RECIPE_FILE}: data.train: expected at least one store")
    validation = open_sources(recipe.data.validation, cache)
    state = build_state(recipe, train_stores[0].spec.size, device)
    entries = {
        "recipe": asdict(recipe),
        "recipe_id": recipe.recipe_id,
        "patch_spec": spec_to_json(train_stores[0].spec),
        "training_data": [{"made_by": s.made_by, "digest": s.digest} for s in train_stores],
    }
    notes = _restore(run_dir, entries, state, train_stores)
    if recipe.init_from and not state.step:
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
    )


def choose_device(recipe: Recipe) -> torch.device:
    """Return the device that the recipe asks for.

    Raises:
        RecipeError: it asks for CUDA and there is none, or for mixed precision without it.
    """
    wanted = recipe.run.device
    has_cuda = torch.cuda.is_available()
    name = "cuda" if wanted == "cuda" or (wanted == "auto" and has_cuda) else "cpu"
    if name == "cuda" and not has_cuda:
        raise RecipeError("run.device: cuda is asked for and not available here")
    if recipe.run.amp and name == "cpu":
        raise RecipeError("run.amp: mixed precision is for CUDA; on a CPU it is ten times slower")
    if name == "cuda":
        index = distributed.local_rank()
        torch.cuda.set_device(index)
        return torch.device("cuda", index)
    return torch.device("cpu")


def build_state(recipe: Recipe, patch_size: int, device: torch.device) -> TrainState:
    """Build network, optimiser, loss and sampler, initialised from the seed."""
    torch.manual_seed(stream_seed(recipe.seed, 0, Stream.WEIGHTS))
    net = build_network(recipe.network, patch_size)
    layout = torch.channels_last if recipe.run.channels_last else torch.contiguous_format
    net = net.to(device, memory_format=layout)  # type: ignore[call-overload]
    method = METHODS[recipe.loss.name]
    loss = method.build(recipe.loss, recipe.network.head, recipe.run.batch)
    sampler = SAMPLERS[recipe.sampler.name].build(recipe.sampler)
    loss.to(device)
    sampler.to(device)
    return TrainState(0, net, build_optimizer(recipe.optim, net.parameters()), loss, sampler)


def build_batches(recipe: Recipe, stores: list[PatchStore], candidates: int) -> Batches:
    """Build the batches of `recipe` from open stores."""
    if recipe.run.batch % distributed.world_size():
        raise RecipeError(
            f"run.batch: {recipe.run.batch} pairs cannot be split over "
            f"{distributed.world_size()} processes"
        )
    shares = shares_of([source.weight for source in recipe.data.train], recipe.run.batch)
    for source, share in zip(recipe.data.train, shares, strict=True):
        if not share:
            raise RecipeError(
                f"data.train: {source.path}: its weight of {source.weight} gives it no pair "
                f"of a batch of {recipe.run.batch}"
            )
    sampler = recipe.sampler
    turn = sampler.max_turn_deg if isinstance(sampler, AdaSampleSamplerOptions) else 0.0
    return Batches(
        stores=stores,
        shares=shares,
        seed=recipe.seed,
        candidates=candidates,
        order=sampler.order,
        neighbours=sampler.neighbours,
        augmentation=recipe.augment,
        max_turn_deg=turn,
    )


def write_samples(run_dir: Path, recipe: Recipe, stores: list[PatchStore]) -> None:
    """Keep some training patches with the run: export compares and calibrates with them."""
    path = run_dir / SAMPLES_FILE
    if path.exists() or distributed.rank():
        return
    rng = numpy_stream(recipe.seed, 0, Stream.VALIDATION)
    rows: list[UInt8] = []
    for store, share in zip(stores, shares_of([1.0] * len(stores), SAMPLE_COUNT), strict=True):
        classes = rng.integers(0, len(store), share)
        member = rng.integers(0, store.class_sizes[classes])
        rows.append(store.patches(store.class_starts[classes] + member))
    buffer = BytesIO()
    np.save(buffer, np.concatenate(rows))
    write_whole(path, buffer.getvalue())


def _refuse_blend(run_dir: Path) -> None:
    final = run_dir / "final.safetensors"
    if final.exists() and BLEND_ENTRY in read_tensors(final).entries:
        raise CheckpointError(
            f"{run_dir}: a blend, which has no steps to go on with; start another run from it "
            "with init_from"
        )


def _restore(
    run_dir: Path, entries: dict[str, Any], state: TrainState, stores: Sequence[PatchStore]
) -> list[str]:
    checkpoints = Checkpoints(run_dir / "checkpoints")
    if not distributed.rank():
        # By now every rank has met, so nothing that is being written is taken away.
        checkpoints.sweep()
        remove_leftovers(run_dir)
    stored, skipped = checkpoints.newest()
    notes = [f"skipped a damaged checkpoint: {message}" for message in skipped]
    if stored is None:
        return notes
    if stored.entries.get("recipe_id") != entries["recipe_id"]:
        other = json.dumps(stored.entries.get("recipe_id"))
        raise CheckpointError(f"{run_dir}: its checkpoints belong to the recipe {other}")
    _refuse_other_data(run_dir, stored.entries.get("training_data", []), stores)
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
                f"{store.digest[:12]}, in its checkpoint {str(before['digest'])[:12]}"
            )


def _start_from(
    run_dir: Path, init_from: str, entries: dict[str, Any], state: TrainState
) -> list[str]:
    source = find_start(init_from, run_dir)
    path, changed = start_network(state.net, source, read_recipe(run_dir).seed)
    entries[START_ENTRY] = hashlib.sha256(path.read_bytes()).hexdigest()
    notes = [f"started from {path}{changed}"]
    if path.parent.name == "checkpoints":
        notes.append(f"{path.parent.parent}: not finished; its newest checkpoint was taken")
    return notes


def find_start(init_from: str, run_dir: Path) -> Path:
    """Return where a recipe's `init_from` is: as given, else beside the run directory.

    Raises:
        CheckpointError: several runs have that name.
    """
    given = Path(init_from)
    for place in (given, run_dir.parent / given, run_dir.parent / given.name):
        found = find_run(place)
        if found.exists():
            return found
    return given
