"""Make homography sequences from photographs, to evaluate on data that needs no download.

Each photograph becomes a folder in HPatches layout: 1.png is the photograph, grey and reduced;
2.png to 6.png are synthetic views of it; H_1_2 to H_1_6 are the homographies. Sequences of
photographs that no model was trained on serve to choose between models, so that public benchmarks
are used only to report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from matchserve.files import WholeDirectory
from matchserve.types import UInt8
from training.data.images import list_images, read_image
from training.data.parallel import in_processes
from training.data.photos.views import check_levels, render
from training.errors import DataError

VIEWS = 5
# Differs from the seed of `data photos`: some views would otherwise be those of a training store.
SEED = 77


@dataclass(frozen=True, slots=True)
class SequenceOptions:
    """How sequences are made; `levels` has one entry per view.

    Photographs whose longer side, after reduction to `max_side`, is below `min_length` pixels are
    left out: they have too few keypoints.
    """

    levels: tuple[str, ...] = ("easy", "medium", "medium", "hard", "night")
    seed: int = SEED
    min_length: int = 600
    max_side: int = 1024

    def __post_init__(self) -> None:
        check_levels(self.levels)
        if len(self.levels) > VIEWS:
            raise DataError(f"a sequence has at most {VIEWS} views; got {len(self.levels)}")
        if self.min_length > self.max_side:
            raise DataError(
                f"min_length must be at most max_side ({self.max_side}); got {self.min_length}"
            )


@dataclass(frozen=True, slots=True)
class _Task:
    photo: str
    path: Path
    folder: Path
    options: SequenceOptions


def write_sequences(
    directories: Sequence[Path],
    output: Path,
    options: SequenceOptions,
    *,
    only: Sequence[str] | None = None,
    workers: int | None = None,
) -> int:
    """Write a sequence for each large enough image in `directories`; return their number.

    `only` restricts it to these photographs, named as the scenes of stores are.

    Raises:
        DataError: a photograph is missing or cannot be read, two sequences would have the same
            name, no photograph is large enough, or `output` exists. Nothing is written then.
    """
    if output.exists():
        raise DataError(f"{output}: already exists; remove it first")
    images = list_images(directories)
    missing = sorted(set(only or ()) - set(images))
    if missing:
        raise DataError(f"{missing[0]}: this photograph is not in the given folders")
    chosen = images if only is None else {name: images[name] for name in only}
    folders = _folder_names(chosen)
    with WholeDirectory(output) as temporary:
        tasks = [
            _Task(name, path, temporary / folders[name], options) for name, path in chosen.items()
        ]
        written = sum(in_processes(_write, tasks, workers=workers, label="photographs"))
        if not written:
            raise DataError(f"no photograph has a side of at least {options.min_length} pixels")
    return written


def _folder_names(photos: Iterable[str]) -> dict[str, str]:
    """Return a folder name for each photograph, all different."""
    folders = {photo: str(Path(photo).with_suffix("")).replace("/", "_") for photo in photos}
    taken: dict[str, str] = {}
    for photo, folder in folders.items():
        if folder in taken:
            raise DataError(f"{photo} and {taken[folder]} would both become the sequence {folder}")
        taken[folder] = photo
    return folders


def _write(task: _Task) -> bool:
    options = task.options
    grey = read_image(task.path, max_side=options.max_side).grey
    if max(grey.shape) < options.min_length:
        return False
    task.folder.mkdir(parents=True)
    _write_image(task.folder / "1.png", grey)
    for number, level in enumerate(options.levels, start=2):
        view = render(grey, task.photo, number, seed=options.seed, level=level)
        _write_image(task.folder / f"{number}.png", view.grey)
        np.savetxt(task.folder / f"H_1_{number}", view.homography)
    return True


def _write_image(path: Path, grey: UInt8) -> None:
    if not cv2.imwrite(str(path), grey):
        raise DataError(f"{path}: cannot be written")
