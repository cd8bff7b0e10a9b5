"""Train the network; an interrupted run continues from its newest checkpoint.

RUN/recipe.json          the recipe, with the checksum of the crops
    checkpoints/         the last two checkpoints
    log.jsonl            figures by step
    final.safetensors    the trained weights
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
import torch
from pydantic import Field
from torch import Tensor, nn

from matchserve.files import write_text_whole
from training.detector.crops import Crops
from training.detector.losses import WINDOWS, choice_loss, place_loss, warp
from training.detector.network import NetworkOptions, ScoreNetwork
from training.errors import CheckpointError, NonFiniteLoss, RecipeError, RunStopped
from training.recipes.options import NonNegative, Options, Positive
from training.runs.checkpoint import Checkpoints, read_tensors, with_prefix, write_tensors
from training.runs.directory import FINAL_FILE
from training.runs.interrupt import StopSignals
from training.runs.lock import only_writer
from training.runs.report import Reporter
from training.runs.schedule import OptimOptions, learning_rate
from training.runtime.randomness import Stream, numpy_stream, stream_seed

RECIPE_FILE = "recipe.json"
_CLIPPED_NORM = 1.0


class DetectorRecipe(Options):
    """Everything that decides what is learned.

    A step takes `batch` pairs of crops. The losses are added with their weights: `choice_loss` has
    the options `share`, `radius_px` and `exact_px`; `place_loss` is off, because it does not help.
    """

    crops_sha256: str
    steps: Annotated[int, Field(ge=1)] = 4000
    batch: Annotated[int, Field(ge=1, le=256)] = 2
    seed: Annotated[int, Field(ge=0)] = 0
    lr: Positive = 4e-3
    network: NetworkOptions = NetworkOptions()
    place_weight: NonNegative = 0.0
    choice_weight: NonNegative = 4.0
    share: Annotated[float, Field(gt=0, lt=1)] = 0.4
    radius_px: Positive = 2.0
    exact_px: Positive = 1.0

    @property
    def optim(self) -> OptimOptions:
        """The optimiser and its learning rate."""
        return OptimOptions(
            name="adam", lr=self.lr, weight_decay=0.0, schedule="cosine", warmup=0.1
        )


@dataclass(slots=True, eq=False)
class _State:
    """The complete state of a run; see `training.runs.checkpoint.TrainState`."""

    step: int
    net: ScoreNetwork
    optimizer: torch.optim.Optimizer

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as named tensors."""
        named = {f"net.{k}": v for k, v in self.net.state_dict().items()}
        for index, entry in self.optimizer.state_dict()["state"].items():
            named |= {f"optim.{index}.{k}": v for k, v in entry.items()}
        return named

    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Restore the state that `tensors()` returned after `step` steps."""
        self.net.load_state_dict(with_prefix(tensors, "net."))
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in with_prefix(tensors, "optim.").items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.step = step


def train(
    crops: Crops,
    run_dir: Path,
    recipe: DetectorRecipe,
    *,
    checkpoint_minutes: float = 3.0,
    log_every: int = 50,
) -> Path:
    """Train `recipe` in `run_dir`, from its newest checkpoint if there is one; return the weights.

    Raises:
        RecipeError: the folder has a run of another recipe or of other crops.
        CheckpointError: there are checkpoints, but none can be read.
        NonFiniteLoss: the loss or a gradient is not finite.
        RunBusy: another process is training this run.
        RunStopped: Ctrl-C or SIGTERM; a checkpoint of the last complete step is saved.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    with only_writer(run_dir):
        _claim(run_dir, recipe)
        return _train(crops, run_dir, recipe, checkpoint_minutes, log_every)


def read_recipe(run_dir: Path) -> DetectorRecipe:
    """Return the recipe of a run.

    Raises:
        RecipeError: there is none, or it is not valid.
    """
    path = run_dir / RECIPE_FILE
    try:
        return DetectorRecipe.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, pydantic.ValidationError) as error:
        first = str(error).splitlines()[0]
        raise RecipeError(f"{path}: not the recipe of a detector: {first}") from error


def read_network(run_dir: Path) -> tuple[ScoreNetwork, dict[str, Any]]:
    """Return the trained network of a run, and the entries of its file.

    Raises:
        RecipeError: the folder has no recipe.
        CheckpointError: the run is not finished, or its weights are damaged or of another network.
    """
    recipe, path = read_recipe(run_dir), run_dir / FINAL_FILE
    if not path.is_file():
        raise CheckpointError(f"{run_dir}: not trained to the end yet: no {FINAL_FILE} in it")
    stored = read_tensors(path)
    net = ScoreNetwork(recipe.network)
    try:
        net.load_state_dict(stored.tensors)
    except RuntimeError as error:
        raise CheckpointError(f"{path}: the weights are of another network") from error
    return net.eval(), stored.entries


def _claim(run_dir: Path, recipe: DetectorRecipe) -> None:
    path = run_dir / RECIPE_FILE
    if not path.exists():
        write_text_whole(path, recipe.model_dump_json(indent=2) + "\n")
    elif (found := read_recipe(run_dir)) != recipe:
        before, now = found.model_dump(), recipe.model_dump()
        names = ", ".join(name for name in now if now[name] != before[name])
        raise RecipeError(
            f"{run_dir}: this run was started with other values of {names}; "
            "give the same values, or another folder"
        )


def _train(
    crops: Crops, run_dir: Path, recipe: DetectorRecipe, checkpoint_minutes: float, log_every: int
) -> Path:
    state = _start(recipe)
    entries: dict[str, Any] = {"recipe": recipe.model_dump(mode="json"), "made_of": crops.made_of}
    checkpoints = Checkpoints(run_dir / "checkpoints")
    checkpoints.clean_up()
    stored, skipped = checkpoints.newest()
    cpu_s = 0.0
    if stored is not None:
        state.restore(stored.tensors, int(stored.entries["step"]))
        cpu_s = float(stored.entries["cpu_s"])
    began, saved_at = time.process_time(), time.monotonic()
    figures: list[dict[str, float]] = []
    with (
        Reporter(run_dir, first=state.step, steps=recipe.steps, is_active=True) as reporter,
        StopSignals() as stop,
    ):
        reporter.print(*skipped)
        while state.step < recipe.steps:
            figures.append(_train_step(state, crops, recipe))
            if state.step % log_every == 0 or state.step == recipe.steps:
                shown = {name: float(np.mean([f[name] for f in figures])) for name in figures[0]}
                figures.clear()
                reporter.log(state.step, shown)
                reporter.advance(state.step, f"chosen {shown['chosen']:.3f}")
            entries["cpu_s"] = round(cpu_s + time.process_time() - began, 1)
            if stop.received or time.monotonic() - saved_at >= 60 * checkpoint_minutes:
                checkpoints.save(state, entries)
                saved_at = time.monotonic()
            if stop.received and state.step < recipe.steps:
                raise RunStopped(
                    f"{run_dir}: stopped at step {state.step} of {recipe.steps} by "
                    f"{stop.received.name}; a checkpoint is saved, and the same command continues"
                )
    if not (run_dir / FINAL_FILE).exists():
        checkpoints.save(state, entries)
        write_tensors(run_dir / FINAL_FILE, state.net.state_dict(), entries)
    return run_dir / FINAL_FILE


def _start(recipe: DetectorRecipe) -> _State:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(recipe.seed, 0, Stream.WEIGHTS))
        net = ScoreNetwork(recipe.network)
    # A fifth faster on processors.
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return _State(0, net, torch.optim.Adam(net.parameters(), lr=recipe.lr))


def _train_step(state: _State, crops: Crops, recipe: DetectorRecipe) -> dict[str, float]:
    rng = numpy_stream(recipe.seed, state.step, Stream.CLASSES)
    rate = learning_rate(recipe.optim, state.step, recipe.steps)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    rows = rng.permutation(len(crops))[: recipe.batch]
    offset = int(rng.integers(0, 8))
    pixels = torch.from_numpy(crops.pixels[rows]).float().flatten(0, 1)[:, None]
    state.net.train()
    scores = state.net(pixels).view(len(rows), 2, *pixels.shape[2:])
    places, both = scores.new_zeros(()), scores.new_zeros(())
    for pair, row in zip(scores, rows, strict=True):
        there = crops.relation(row)
        if recipe.place_weight:
            back = there.reversed()
            places = places + place_loss(pair[0], warp(pair[1], there), WINDOWS, offset)
            places = places + place_loss(pair[1], warp(pair[0], back), WINDOWS, offset)
        both = both + choice_loss(pair, there, recipe.share, recipe.radius_px, recipe.exact_px)
    places, both = places / (2 * len(rows)), both / len(rows)
    loss = recipe.place_weight * places + recipe.choice_weight * both
    state.optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(state.net.parameters(), _CLIPPED_NORM)
    if not math.isfinite(loss.item() + norm.item()):
        raise NonFiniteLoss(
            f"step {state.step}: the loss ({loss.item()}) or its gradient is not finite"
        )
    state.optimizer.step()
    state.step += 1
    return {"lr": rate, "loss": loss.item(), "places": places.item(), "chosen": -both.item()}
