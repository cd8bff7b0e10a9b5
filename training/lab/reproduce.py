"""Reproduce the tables of a paper: import the data, train, score, and print both numbers.

Every part is kept in the output folder and not done twice: stores, runs and predictions. A run that
was interrupted goes on at its last checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from training.data.public import generated
from training.data.public.hpatches import WHERE as HPATCHES_WHERE
from training.data.public.hpatches import import_split
from training.data.public.phototour import import_phototour
from training.data.store.fixed_pairs import limit_pairs
from training.errors import DataError
from training.evaluation.benchmarks import hpatches, phototour
from training.evaluation.protocol import Model, Options, model_stamp
from training.evaluation.run_model import RunDescriptor
from training.lab.papers import COLUMNS, SETS, TASKS, Row
from training.lab.plot import plot_run
from training.metrics.metric import FPR95, in_group
from training.recipes.reading import shipped_recipes
from training.runs.directory import FINISHED_FILE, create_run
from training.runs.loop import train
from training.runs.recipe import Recipe, load_recipe

MD5 = {
    "liberty": "fdd9152f138ea5ef2091746689176414",
    "notredame": "509eda8535847b8c0a90bbb210c83484",
    "yosemite": "533b2e8eb7ede31be40abc317b2fd4f0",
}
_MIN_STEPS, _MIN_BATCH, _MIN_WIDTH = 20, 16, 0.125
_MIN_PAIRS = 200
_VERIFICATION_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Where the data is, where results go, and how small everything is made (`scale`, 0..1]."""

    out: Path
    phototour: Path | None = None
    hpatches: Path | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of a table: the paper's and ours, in percent."""

    row: str
    column: str
    paper: float
    ours: float


def generate_data(out: Path, *, points: int = 300) -> tuple[Path, Path]:
    """Generate PhotoTour and HPatches in `out` unless they exist; return their folders."""
    tours, base = out / "phototour", out / "hpatches"
    for seed, name in enumerate(SETS):
        if not (tours / name).exists():
            generated.generate_phototour(tours / name, points=points, seed=seed)
    if not base.exists():
        generated.generate_hpatches(base, points=max(20, points // 6), seed=9)
    return tours, base / "hpatches-release"


def reproduce_row(row: Row, job: Reproduction) -> Iterator[Cell]:
    """Train and score what `row` needs; yield its cells in the order of the paper.

    Raises:
        DataError: the data is not where the job says; the message tells how to get it.
    """
    if row.benchmark == "phototour":
        for (trained_on, tested_on), printed in zip(COLUMNS, row.printed, strict=True):
            run_dir = train_row(row, job, trained_on)
            ours = _score_phototour(run_dir, tested_on, job)
            yield Cell(row.label, f"{trained_on} -> {tested_on}", printed, ours)
        return
    run_dir = train_row(row, job, row.trained_on)
    scores = _score_hpatches(run_dir, row.split, job)
    for task, printed, ours in zip(TASKS, row.printed, scores, strict=True):
        yield Cell(row.label, task, printed, ours)


def train_row(row: Row, job: Reproduction, trained_on: str) -> Path:
    """Train the recipes of `row` on one data set, unless that is done; return the last run."""
    stores = _stores(trained_on, job)
    if row.pairs:
        stores = (_limited(stores[0], row.pairs, job), stores[1])
    start, run_dir = "", Path()
    for name in row.recipes:
        recipe = row_recipe(name, row, job, stores=stores, start=start)
        run_dir = create_run(recipe, job.out / "runs")
        if not (run_dir / FINISHED_FILE).exists():
            train(run_dir)
            plot_run(run_dir, job.out / "curves" / run_dir.name)
        start = run_dir.name
    return run_dir


def row_recipe(
    name: str, row: Row, job: Reproduction, *, stores: tuple[Path, Path], start: str
) -> Recipe:
    """Return the recipe `name` on these stores (training, validation), made smaller by the scale.

    Steps shrink with the scale; batch, width and learning rate with its square root. SDGM's moving
    averages get the constants of short runs, without which it would learn nothing.
    """
    assert name in shipped_recipes(), name  # noqa: S101  a name in papers.py, not an input
    changes = [
        *row.overrides,
        f'data.train=[{{path="{stores[0]}"}}]',
        f'data.validation=[{{path="{stores[1]}"}}]',
        f'init_from="{start}"',
        f'name="{name}-{stores[0].name}"',
    ]
    if job.scale < 1:
        whole = load_recipe(name)
        root = math.sqrt(job.scale)
        steps = max(_MIN_STEPS, round(whole.run.steps * job.scale))
        batch = max(_MIN_BATCH, round(whole.run.batch * root))
        changes += [
            f"run.steps={steps}",
            f"run.batch={batch}",
            f"run.validate_every={max(1, steps // 5)}",
            f"run.log_every={max(1, steps // 20)}",
            f"optim.lr={whole.optim.lr * math.sqrt(batch / whole.run.batch)}",
            f"network.width={max(_MIN_WIDTH, root)}",
        ]
        if whole.loss.name == "sdgm":
            ema = min(0.5, 200 / steps)
            changes += [f"loss.ema={ema}", "loss.power_init=0.0", "loss.reset_powers=true"]
    return load_recipe(name, changes)


def to_markdown(title: str, cells: list[Cell], job: Reproduction, notes: list[str]) -> str:
    """Return a table of both numbers and their difference."""
    lines = [f"### {title}", ""]
    if job.scale < 1:
        lines += [f"Scale {job.scale:g}: a check of the whole way, not of the paper.", ""]
    lines += ["| row | column | paper | ours | difference |", "|---|---|---|---|---|"]
    lines += [
        f"| {c.row} | {c.column} | {c.paper:.2f} | {c.ours:.2f} | {c.ours - c.paper:+.2f} |"
        for c in cells
    ]
    return "\n".join([*lines, *(f"\nNote: {note}." for note in notes), ""])


def phototour_folder(name: str, job: Reproduction) -> Path:
    """Return the folder of one PhotoTour set.

    Raises:
        DataError: it is not there; the message has the download and its checksum.
    """
    folder = (job.phototour or Path("phototour")) / name
    if not (folder / "info.txt").is_file():
        raise DataError(
            f"{folder}: PhotoTour's {name} is not there; get it with\n"
            f"  curl -LO http://matthewalunbrown.com/patchdata/{name}.zip   # MD5 {MD5[name]}\n"
            f"  unzip {name}.zip -d {folder}\nand give the folder above it as --phototour, or try "
            "the command with --generated --scale 0.01"
        )
    return folder


def _stores(trained_on: str, job: Reproduction) -> tuple[Path, Path]:
    """Return the stores to train and to validate on; import them if they do not exist."""
    folder = job.out / "stores"
    folder.mkdir(parents=True, exist_ok=True)
    if trained_on == "hpatches-a":
        train_store, test_store = import_split(_release(job), folder / "hpatches-a", "a")
        return train_store, test_store
    other = SETS[(SETS.index(trained_on) + 1) % len(SETS)]
    paths = []
    for name in (trained_on, other):
        store = folder / f"phototour-{name}"
        if not store.exists():
            import_phototour(phototour_folder(name, job), store, made_by="reproduce")
        paths.append(store)
    return paths[0], paths[1]


def _limited(store: Path, pairs: int, job: Reproduction) -> Path:
    """Return the store limited to a fixed number of pairs; write it if it does not exist."""
    count = max(_MIN_PAIRS, round(pairs * job.scale))
    limited = store.with_name(f"{store.name}-{count}-pairs")
    if not limited.exists():
        limit_pairs(store, limited, count=count, made_by="reproduce")
    return limited


def _release(job: Reproduction) -> Path:
    release = job.hpatches or Path("hpatches-release")
    if not release.is_dir():
        raise DataError(
            f"{release}: not there. {HPATCHES_WHERE} as --hpatches, or try the command with "
            "--generated --scale 0.01"
        )
    return release


def _score_phototour(run_dir: Path, tested_on: str, job: Reproduction) -> float:
    model, options = _model(run_dir), Options(cache=job.out / "predictions")
    result = phototour.run([model], [phototour_folder(tested_on, job)], options)
    return 100 * result.models[model.name].figures[in_group(tested_on, FPR95.name)]


def _score_hpatches(run_dir: Path, split: str, job: Reproduction) -> list[float]:
    rows = None if job.scale >= 1 else max(500, round(_VERIFICATION_ROWS * job.scale))
    model = _model(run_dir)
    options = Options(cache=job.out / "predictions", split=split, limit=rows)
    figures = hpatches.run([model], [_release(job)], options).models[model.name].figures
    return [100 * figures[task] for task in TASKS]


def _model(run_dir: Path) -> Model:
    descriptor = RunDescriptor(run_dir)
    return Model(run_dir.name, descriptor, model_stamp(descriptor.card), str(run_dir))
