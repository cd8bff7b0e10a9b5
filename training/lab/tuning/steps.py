"""The steps of `python -m training tune`: patches, split, training, export, comparison.

Each step leaves a file or folder in the workspace, complete or not at all, and is skipped when that
is there: the same command continues after an interruption.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from matchserve.files import write_text_whole
from matchserve.models.card import read_card, write_card
from matchserve.models.confidence import CONFIDENCE_FILE
from matchserve.models.registry import load_descriptor, shipped_models_dir
from training.data.images import list_images
from training.data.photos.build import PhotoOptions, build_photos
from training.data.photos.sequences import SequenceOptions, write_sequences
from training.data.store.divide import split_store, used_scenes
from training.data.store.reader import PatchStore
from training.errors import DataError
from training.evaluation import tables
from training.evaluation.benchmarks import homography
from training.evaluation.protocol import BenchmarkResult, Model, Options, model_stamp
from training.export.cards import CardText
from training.export.export import export, new_model_directory
from training.networks import published
from training.runs.directory import FINISHED_FILE, create_run
from training.runs.loop import train
from training.runs.recipe import load_recipe

RECIPE = "compact-tune"
MIN_PHOTOS = 5
MIN_HELD_OUT = 5
"""Fewer photographs kept apart do not show whether tuning helped."""
MAX_HELD_OUT = 20
"""More photographs kept apart would make the comparison take longer than the training."""
MIN_SIDE = 256
"""Smallest longer side, in pixels, of a held-out photograph that is matched."""
PLAN_FILE = "plan.json"
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """How a model is tuned.

    `start` is the name of the shipped model. `held_out` is the share of the photographs on which
    both models are compared; `max_classes` bounds the patches taken from one photograph.
    """

    start: str = "compact"
    steps: int = 600
    batch: int = 256
    held_out: float = 0.2
    max_classes: int = 600
    max_keypoints: int = 1024
    seed: int = 0
    workers: int | None = None

    def recorded(self) -> dict[str, Any]:
        """Return the options that decide the result; a workspace keeps them."""
        return {key: value for key, value in asdict(self).items() if key != "workers"}


@dataclass(frozen=True, slots=True)
class Workspace:
    """The folder of intermediate results."""

    path: Path

    @property
    def train_store(self) -> Path:
        """Patches of the photographs that are trained on."""
        return self.path / "train"

    @property
    def held_out_store(self) -> Path:
        """Patches of the photographs that are kept apart."""
        return self.path / "held-out"

    @property
    def sequences(self) -> Path:
        """Views of the photographs that are kept apart, for the comparison."""
        return self.path / "sequences"

    @property
    def tuned(self) -> Path:
        """The exported model, whether it is better or not."""
        return self.path / "tuned"

    @property
    def result(self) -> Path:
        """The comparison, as `evaluate --json` writes it."""
        return self.path / "result.json"


def start_directory(start: str) -> Path:
    """Return the directory of the shipped model that is tuned.

    Raises:
        DataError: there is no such model, or it is not a float model of one patch.
        CheckpointError: its weights cannot be trained further, as those of an int8 model.
    """
    directory = shipped_models_dir() / start
    if not directory.is_dir():
        known = sorted(p.name for p in shipped_models_dir().iterdir() if p.is_dir())
        raise DataError(f"no shipped model {start!r}; there are {', '.join(known)}")
    card = read_card(directory)
    if card.kind != "float" or "domain_size" in card.recipe or "network" not in card.recipe:
        raise DataError(f"{start}: tune starts from a float model of one patch, such as compact")
    published.read_weights(directory)
    return directory


def make_plan(photos: Path, workspace: Workspace, options: TuneOptions) -> list[str]:
    """Choose the photographs that are kept apart; return their names.

    Raises:
        DataError: there are too few photographs, or the workspace belongs to another plan.
    """
    names = list(list_images([photos]))
    if len(names) < MIN_PHOTOS:
        raise DataError(
            f"{photos}: has {len(names)} photographs; at least {MIN_PHOTOS} are needed, and 50 or "
            "more are useful"
        )
    wanted = max(MIN_HELD_OUT, round(options.held_out * len(names)))
    count = min(wanted, MAX_HELD_OUT, len(names) // 2)
    order = np.random.default_rng(options.seed).permutation(len(names))
    held_out = sorted(names[i] for i in order[:count])
    plan = {"options": options.recorded(), "photos": names, "held_out": held_out}
    path = workspace.path / PLAN_FILE
    if path.is_file():
        if json.loads(path.read_text(encoding="utf-8")) != plan:
            raise DataError(
                f"{workspace.path}: was made with other photographs or options; remove the folder, "
                "or give another one with --workspace"
            )
    else:
        workspace.path.mkdir(parents=True, exist_ok=True)
        write_text_whole(path, json.dumps(plan, indent=1) + "\n")
    return held_out


def make_patches(
    photos: Path, workspace: Workspace, held_out: list[str], options: TuneOptions
) -> tuple[PatchStore, PatchStore]:
    """Cut patches of all photographs, and put those kept apart into a store of their own.

    Raises:
        DataError: a photograph cannot be read, or too few of them have enough keypoints.
    """
    spec = read_card(start_directory(options.start)).patch
    everything = workspace.path / "all"
    if not (workspace.train_store.is_dir() and workspace.held_out_store.is_dir()):
        if not everything.is_dir():
            rule = PhotoOptions(spec=spec, seed=options.seed, max_classes=options.max_classes)
            build_photos([photos], everything, rule, workers=options.workers, made_by="tune")
        for path in (workspace.train_store, workspace.held_out_store):
            shutil.rmtree(path, ignore_errors=True)  # one of the two, after an interruption
        usable = set(used_scenes(PatchStore.open(everything)))
        split_store(
            everything,
            workspace.train_store,
            workspace.held_out_store,
            [name for name in held_out if name in usable],
            made_by="tune",
        )
        shutil.rmtree(everything)
    return PatchStore.open(workspace.train_store), PatchStore.open(workspace.held_out_store)


def train_model(workspace: Workspace, options: TuneOptions) -> Path:
    """Train the shipped model further on the patches; return the run directory.

    Raises:
        RunStopped: Ctrl-C; a checkpoint is saved.
    """
    card = read_card(start_directory(options.start))
    network = card.recipe["network"]
    recipe = load_recipe(
        RECIPE,
        [
            f'init_from="{options.start}"',
            *(f"network.{key}={json.dumps(value)}" for key, value in network.items()),
            f'data.train.0.path="{workspace.train_store}"',
            f'data.validation.0.path="{workspace.held_out_store}"',
            f"run.steps={options.steps}",
            f"run.batch={options.batch}",
            f"run.validate_every={max(1, options.steps // 3)}",
            "run.checkpoint_minutes=1",
            f"seed={options.seed}",
        ],
    )
    run_dir = create_run(recipe, workspace.path / "runs")
    if not (run_dir / FINISHED_FILE).exists():
        train(run_dir)
    return run_dir


def export_model(workspace: Workspace, run_dir: Path, name: str, options: TuneOptions) -> None:
    """Export the run, with the calibration and confidence of the model that it started from."""
    if workspace.tuned.is_dir():
        return
    source = start_directory(options.start)
    text = CardText(
        method=f"{options.start}, tuned on photographs of the user for {options.steps} steps",
        training_data=("Photographs of the user under synthetic views",),
        notes=f"same_scene and confidence are those of {options.start}, not fitted again.",
        purpose="photographs like those it was tuned on",
    )
    temporary = workspace.path / f".{workspace.tuned.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    exported = temporary / workspace.tuned.name
    export(run_dir, exported, text)
    if (source / CONFIDENCE_FILE).is_file():
        shutil.copyfile(source / CONFIDENCE_FILE, exported / CONFIDENCE_FILE)
    calibration = read_card(source).calibration
    card = read_card(exported)
    write_card(card.model_copy(update={"calibration": calibration, "name": name}), exported)
    exported.rename(workspace.tuned)
    temporary.rmdir()


def compare_models(
    photos: Path, workspace: Workspace, held_out: list[str], options: TuneOptions
) -> BenchmarkResult:
    """Match views of the photographs kept apart with the model before and after tuning.

    The matches are those that the service returns by default.

    Raises:
        DataError: no photograph kept apart is large enough.
    """
    if workspace.result.is_file():
        return tables.read_json(workspace.result)
    if not workspace.sequences.is_dir():
        views = SequenceOptions(min_length=MIN_SIDE)
        write_sequences(
            [photos], workspace.sequences, views, only=held_out, workers=options.workers
        )
    rule = Options(
        max_keypoints=options.max_keypoints,
        pipeline="default",
        cache=workspace.path / "predictions",
        workspace=workspace.path / "evaluation",
    )
    models = [
        _loaded(BEFORE, start_directory(options.start)),
        _loaded(AFTER, workspace.tuned),
    ]
    result = homography.run(models, [workspace.sequences], rule)
    write_text_whole(workspace.result, tables.to_json(result, "python -m training tune"))
    return result


def _loaded(name: str, directory: Path) -> Model:
    descriptor = load_descriptor(f"{directory}/")
    return Model(name, descriptor, model_stamp(descriptor.card), str(directory))


def keep_model(source: Path, out: Path, files: dict[str, Path]) -> None:
    """Copy the model directory `source` to `out` under its name, with `files` beside it."""
    with new_model_directory(out) as temporary:
        shutil.copytree(source, temporary, dirs_exist_ok=True)
        write_card(read_card(source).model_copy(update={"name": out.name}), temporary)
        for name, path in files.items():
            shutil.copyfile(path, temporary / name)
