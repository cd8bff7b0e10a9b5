"""Run directories: what is in them, how they are made and found.

runs/NAME-ID/recipe.toml          the complete recipe; ID is its `recipe_id`
             checkpoints/         the last two checkpoints
             samples.npy          some training patches, for the checks of an export
             log.jsonl            figures by step
             kept/                the weights of every `run.keep_every` steps
             best.safetensors     the weights with the lowest mean FPR95 in validation
             final.safetensors    the trained weights
             finished             empty; exists once training is complete
runs/stores/                      generated patch stores
"""

from __future__ import annotations

from pathlib import Path

from matchserve.files import write_text_whole
from matchserve.models.card import MODEL_FILE
from matchserve.models.registry import shipped_models_dir
from training.errors import CheckpointError, RecipeError
from training.recipes.checking import validate
from training.recipes.reading import RecipeTable, read_toml
from training.runs.recipe import Recipe
from training.runtime import distributed

RECIPE_FILE = "recipe.toml"
SAMPLES_FILE = "samples.npy"
FINAL_FILE = "final.safetensors"
BEST_FILE = "best.safetensors"
KEPT_FOLDER = "kept"
FINISHED_FILE = "finished"


def create_run(recipe: Recipe, out: Path) -> Path:
    """Return the run directory of `recipe` in `out`; make it unless it exists.

    The recipe in an existing directory gets the execution options of `recipe`.
    """
    directory = out / recipe.run_name
    before = out / f"{recipe.name}-{recipe.full_id}"
    if not directory.exists() and before.exists():
        directory = before
    directory.mkdir(parents=True, exist_ok=True)
    # The first process writes; the others read only after all processes have met.
    if distributed.launched_rank() == 0:
        write_recipe(recipe, directory)
    return directory


def write_recipe(recipe: Recipe, run_dir: Path) -> None:
    """Write the recipe of a run directory, unless it is there already."""
    path, text = run_dir / RECIPE_FILE, recipe.to_toml()
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text_whole(path, text)


def read_recipe(run_dir: Path) -> Recipe:
    """Return the recipe of a run directory.

    Raises:
        RecipeError: there is no recipe, or this version does not accept it.
    """
    values, file = read_toml(run_dir / RECIPE_FILE)
    try:
        return validate(Recipe, RecipeTable(values, (file,), title=str(file.path)))
    except RecipeError as error:
        raise RecipeError(
            f"{error.message}; this version does not accept the recipe of this run: correct the "
            "file, install the plug-in that it needs, or use the version of matchserve that made "
            "the run"
        ) from error


def find_run(source: Path) -> Path:
    """Return `source` if it exists, else the only run directory called `source-ID`, else `source`.

    Raises:
        CheckpointError: there are several such runs.
    """
    if source.exists():
        return source
    # An ID has twelve digits, so NAME does not match NAME-finetune-ID.
    runs = sorted(source.parent.glob(f"{source.name}-{'[0-9a-f]' * 12}"))
    if len(runs) > 1:
        names = ", ".join(str(run) for run in runs)
        raise CheckpointError(f"{source}: several runs have this name; give one of {names}")
    return runs[0] if runs else source


def find_start(init_from: str, run_dir: Path) -> Path:
    """Return the path of a recipe's `init_from`: relative to the current folder or to `run_dir`'s.

    The name of a shipped model, such as `compact` or `models/compact`, works from any folder.

    Raises:
        CheckpointError: several runs have this name.
    """
    path = Path(init_from)
    for candidate in (path, run_dir.parent / path, run_dir.parent / path.name):
        existing = find_run(candidate)
        if existing.exists():
            return existing
    shipped = shipped_models_dir() / path.name
    if path.parent in (Path(), Path("models")) and (shipped / MODEL_FILE).is_file():
        return shipped
    return path
