"""Homography sequences from photographs: something to measure on that nobody has to download.

Each photograph becomes a folder in HPatches layout: 1.png as it is, 2.png to 6.png synthetic views
of it, H_1_2 to H_1_6 where its points went. Made of photographs that no model was trained on, they
choose between models, so that the public sequences need not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from training.data.images import list_images, read_image
from training.data.parallel import in_processes
from training.data.views import check_levels, render
from training.errors import DataError

VIEWS = 5


@dataclass(frozen=True, slots=True)
class SequenceOptions:
    """`levels` has one entry a view; photographs shorter than `min_side` have too few keypoints."""

    levels: tuple[str, ...] = ("easy", "medium", "medium", "hard", "night")
    seed: int = 0
    min_side: int = 600
    max_side: int = 1024

    def __post_init__(self) -> None:
        check_levels(self.levels)
        if len(self.levels) > VIEWS:
            raise DataError(f"a sequence has at most {VIEWS} views; got {len(self.levels)}")


@dataclass(frozen=True, slots=True)
class _Task:
    photo: str
    path: Path
    output: Path
    options: SequenceOptions


def write_sequences(
    directories: Sequence[Path],
    output: Path,
    options: SequenceOptions,
    *,
    only: Sequence[str] | None = None,
    workers: int | None = None,
) -> int:
    """Write a sequence of every large enough image under `directories`; return how many.

    `only` names the photographs to take, as stores name their scenes.

    Raises:
        DataError: a photograph of `only` is not there, none is large enough, or `output` is there.
    """
    if output.exists():
        raise DataError(f"{output}: already there; remove it first")
    images = list_images(directories)
    missing = sorted(set(only or ()) - set(images))
    if missing:
        raise DataError(f"{missing[0]}: no such photograph in the folders given")
    chosen = images if only is None else {name: images[name] for name in only}
    tasks = [_Task(name, path, output, options) for name, path in chosen.items()]
    written = sum(in_processes(_write, tasks, workers=workers, label="photographs"))
    if not written:
        raise DataError(f"no photograph is as long as {options.min_side} pixels")
    return written


def _write(task: _Task) -> bool:
    options = task.options
    grey = read_image(task.path, max_side=options.max_side).grey
    if max(grey.shape) < options.min_side:
        return False
    folder = task.output / Path(task.photo).with_suffix("").as_posix().replace("/", "_")
    folder.mkdir(parents=True)
    cv2.imwrite(str(folder / "1.png"), grey)
    for number, level in enumerate(options.levels, start=2):
        view = render(grey, task.photo, number, seed=options.seed, level=level)
        cv2.imwrite(str(folder / f"{number}.png"), view.grey)
        np.savetxt(folder / f"H_1_{number}", view.homography)
    return True
