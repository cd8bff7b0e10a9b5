"""Find registered pairs: folders with the images `1.*` and `2.*` and the homography `H_1_2`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from matchserve.types import Float64
from training.data.images import numbered_image
from training.errors import DataError

HOMOGRAPHY_FILE = "H_1_2"


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredPair:
    """Two image files and the homography (3, 3) from the first to the second.

    Coordinates are of pixel centres. `name` is `FOLDER/path/of/pair`, and the images are
    `FOLDER/path/of/pair/1.jpg` and `.../2.jpg`.
    """

    name: str
    paths: tuple[Path, Path]
    homography: Float64

    @property
    def images(self) -> tuple[str, str]:
        """Names of the two images in a store."""
        first, second = self.paths
        return f"{self.name}/{first.name}", f"{self.name}/{second.name}"


def find_pairs(directories: Sequence[Path]) -> list[RegisteredPair]:
    """Return all registered pairs below the directories, sorted within each.

    Raises:
        DataError: a directory has no pair, a file is missing or damaged, or two pairs would have
            the same name.
    """
    pairs: dict[str, RegisteredPair] = {}
    for directory in directories:
        marks = sorted(directory.rglob(HOMOGRAPHY_FILE))
        if not marks:
            raise DataError(f"{directory}: no folder with 1.*, 2.* and {HOMOGRAPHY_FILE} in it")
        for mark in marks:
            pair = _read_pair(mark.parent, directory)
            if pair.name in pairs:
                raise DataError(f"{mark.parent}: another pair is already named {pair.name}")
            pairs[pair.name] = pair
    return list(pairs.values())


def _read_pair(folder: Path, root: Path) -> RegisteredPair:
    inside = folder.relative_to(root).as_posix()
    name = root.resolve().name if inside == "." else f"{root.resolve().name}/{inside}"
    paths = (numbered_image(folder, 1), numbered_image(folder, 2))
    path = folder / HOMOGRAPHY_FILE
    try:
        matrix = np.loadtxt(path, dtype=np.float64, ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected numbers, {error}") from error
    if matrix.shape != (3, 3) or not np.isfinite(matrix).all() or not np.linalg.det(matrix):
        raise DataError(f"{path}: expected an invertible matrix of three rows and columns")
    return RegisteredPair(name, paths, matrix)
