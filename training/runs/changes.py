"""Continue a run with other execution options, or with more steps."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from training.errors import CheckpointError, RecipeError
from training.recipes.overrides import apply_overrides, parse_override
from training.recipes.reading import read_toml
from training.runs.checkpoint import Checkpoints, write_tensors
from training.runs.directory import RECIPE_FILE, SAMPLES_FILE, create_run, read_recipe, write_recipe
from training.runs.recipe import EXECUTION, Recipe, recipe_from_table
from training.runs.report import LOG_FILE
from training.runtime import distributed

# Entry of a weights file: the recipe ID of the run that this one continues with more steps.
EXTENDED_ENTRY = "extends_run"


def change_run(run_dir: Path, overrides: Sequence[str]) -> Path:
    """Apply `key=value` overrides to a run; return the run to train.

    Execution options change the run itself. A larger `run.steps` makes a new run, which continues
    at the newest checkpoint of this one; its learning rates are those of a run of that length.

    Raises:
        RecipeError: an override would change what the run has learned so far.
    """
    if not overrides:
        return run_dir
    before = read_recipe(run_dir)
    values, _ = read_toml(run_dir / RECIPE_FILE)
    parsed = [parse_override(text) for text in overrides]
    allowed = {f"run.{key}" for key in (*EXECUTION, "steps")}
    for override in parsed:
        if override.key not in allowed:
            raise RecipeError(
                f"--set {override.text}: the recipe of the run {run_dir} cannot be changed, except "
                f"for {', '.join(sorted(allowed))}; to make a new run, train the recipe itself "
                "with --set"
            )
    after = recipe_from_table(apply_overrides(values, parsed), f"{run_dir} with --set")
    if after.run.steps != before.run.steps:
        return _extend(run_dir, before, after)
    if distributed.launched_rank() == 0:
        write_recipe(after, run_dir)
    return run_dir


def _extend(run_dir: Path, before: Recipe, after: Recipe) -> Path:
    stored, _ = Checkpoints(run_dir / "checkpoints").newest()
    if stored is None:
        raise CheckpointError(f"{run_dir}: no checkpoint to continue from")
    step = int(stored.entries["step"])
    if after.run.steps <= step:
        raise RecipeError(
            f"run.steps: {run_dir} has done {step} steps already, expected more than that"
        )
    extended = create_run(after, run_dir.parent)
    target = Checkpoints(extended / "checkpoints")
    if target.files() or distributed.launched_rank():
        return extended
    for name in (LOG_FILE, SAMPLES_FILE):
        if (run_dir / name).exists():
            shutil.copyfile(run_dir / name, extended / name)
    entries = {
        **stored.entries,
        "recipe": after.model_dump(),
        "recipe_id": after.recipe_id,
        EXTENDED_ENTRY: before.recipe_id,
    }
    target.directory.mkdir(parents=True, exist_ok=True)
    # Last, because a run with a checkpoint is complete.
    write_tensors(target.directory / stored.path.name, stored.tensors, entries)
    return extended
