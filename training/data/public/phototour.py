"""Read UBC PhotoTour (Brown, Hua and Winder): liberty, notredame, yosemite, as unzipped.

    patches0000.bmp …           1024 x 1024 grey sheets of 16 x 16 patches of 64 x 64 pixels
    info.txt                    per patch: 3D point, unused
    interest.txt                per patch: reference image, x, y, orientation, log2 scale
    m50_100000_100000_0.txt     per pair: patch, point, unused, patch, point, unused

Most copies of the list of pairs have a seventh column, unused as well. Empty lines are ignored.
The last sheet is padded; the number of patches is that of the lines of `info.txt`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from matchserve.types import PatchSpec, UInt8
from training.data.parallel import progress
from training.data.resampling import resample
from training.data.store.notes import to_notes
from training.data.store.pairs import PatchPairs, write_official_pairs
from training.data.store.resumable import ResumableImport, StoreRows
from training.errors import DataError

PAIR_FILE = "m50_100000_100000_0.txt"
SHEET, SIDE = 1024, 64
PER_SHEET = (SHEET // SIDE) ** 2
WHERE = (
    "PhotoTour is at phototour.cs.washington.edu/patches (liberty.zip, notredame.zip, "
    "yosemite.zip); unpack one and give its folder"
)


@dataclass(frozen=True, slots=True, eq=False)
class PhotoTour:
    """One PhotoTour set; `points` (P,) is the 3D point that each patch shows."""

    path: Path
    sheets: tuple[Path, ...]
    points: NDArray[np.int64]

    @classmethod
    def open(cls, path: Path) -> PhotoTour:
        """Read `info.txt` and list the sheets.

        Raises:
            DataError: a file is missing, or there are too few sheets for the patches.
        """
        if not (path / "info.txt").is_file():
            raise DataError(f"{path / 'info.txt'}: missing. {WHERE}")
        points = read_numbers(path / "info.txt", 2)[:, 0].astype(np.int64)
        sheets = tuple(sorted(path.glob("*.bmp")))
        needed = -(-len(points) // PER_SHEET)
        if len(sheets) < needed:
            raise DataError(
                f"{path}: {len(points)} patches need {needed} sheets, found {len(sheets)}"
            )
        return cls(path, sheets[:needed], points)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.resolve().name

    @property
    def digest(self) -> str:
        """An identifier of the data: the set's name, number of patches and bytes of its sheets."""
        sizes = [sheet.stat().st_size for sheet in self.sheets]
        return f"{self.name}-{len(self)}-{sum(sizes)}"

    def sheet(self, number: int) -> UInt8:
        """Return the patches of one sheet, (256, 64, 64); fewer of the last one.

        Raises:
            DataError: the sheet is damaged or has the wrong size.
        """
        path = self.sheets[number]
        try:
            with Pillow.open(path, formats=("BMP",)) as picture:
                pixels = np.asarray(picture.convert("L"), np.uint8)
        except (OSError, SyntaxError, ValueError) as error:
            size = path.stat().st_size if path.exists() else 0
            raise DataError(f"{path}: damaged or cut off at byte {size}, {error}") from error
        if pixels.shape != (SHEET, SHEET):
            raise DataError(f"{path}: expected {SHEET} x {SHEET} pixels, found {pixels.shape}")
        grid = pixels.reshape(SHEET // SIDE, SIDE, SHEET // SIDE, SIDE).swapaxes(1, 2)
        rest = len(self) - number * PER_SHEET
        return np.asarray(grid.reshape(-1, SIDE, SIDE)[:rest])

    def patches(self, indices: NDArray[np.int64], size: int = 32) -> UInt8:
        """Return the patches (N, size, size) at `indices`, resampled from 64 x 64."""
        patches = np.empty((len(indices), size, size), np.uint8)
        sheet_of = indices // PER_SHEET
        for number in np.unique(sheet_of):
            here = np.flatnonzero(sheet_of == number)
            patches[here] = resample(self.sheet(int(number))[indices[here] % PER_SHEET], size)
        return patches

    def pairs(self, name: str = PAIR_FILE) -> PatchPairs:
        """Read a list of pairs; a pair matches if both patches show the same 3D point.

        Raises:
            DataError: the list is missing, damaged or refers to patches that do not exist.
        """
        path = self.path / name
        if not path.is_file():
            raise DataError(f"{path}: missing. {WHERE}")
        rows = read_numbers(path, 6, unused=1).astype(np.int64)
        beyond = np.flatnonzero((rows[:, [0, 3]] >= len(self)).any(axis=1))
        if len(beyond):
            raise DataError(f"{path}: pair {beyond[0] + 1} names a patch beyond {len(self)}")
        return PatchPairs(rows[:, 0], rows[:, 3], rows[:, 1] == rows[:, 4])


def read_numbers(path: Path, columns: int, *, unused: int = 0) -> NDArray[Any]:
    """Read a text file with `columns` numbers per line, ignoring empty lines.

    A line may have up to `unused` more columns, which are not read.

    Raises:
        DataError: the file cannot be read, or a line has other columns.
    """
    rows: list[list[float]] = []
    number = 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                words = line.split()
                if not words:
                    continue
                if not columns <= len(words) <= columns + unused:
                    raise DataError(
                        f"{path}: line {number} has {len(words)} columns, expected {columns}"
                    )
                rows.append([float(word) for word in words[:columns]])
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: line {number}: expected numbers, {error}") from error
    return np.array(rows, np.float64).reshape(-1, columns)


def import_phototour(path: Path, output: Path, *, size: int = 32, made_by: str = "") -> Path:
    """Write one PhotoTour set as a patch store; an interrupted import is resumed.

    The store keeps the official list of pairs, if there is one: training validates on it.

    Raises:
        DataError: a file is missing or damaged, or `output` exists.
    """
    tour = PhotoTour.open(path)
    interest = read_numbers(path / "interest.txt", 5)
    if len(interest) != len(tour):
        raise DataError(f"{path / 'interest.txt'}: {len(interest)} rows for {len(tour)} patches")
    order = np.argsort(tour.points, kind="stable")
    buffer = ResumableImport(output, (len(tour), size, size), tour.digest)
    steps = range(buffer.done, len(tour.sheets))
    for number in progress(steps, total=len(steps), label=tour.name):
        start = number * PER_SHEET
        buffer.write(start, resample(tour.sheet(number), size), step=number + 1)
    _, sizes = np.unique(tour.points, return_counts=True)
    # x, y, scale and angle refer to the reference image; the authors cropped the patches.
    keypoints = np.column_stack([interest[:, 1:3], 2.0 ** interest[:, 4], interest[:, 3]])
    images = [f"{tour.name}/{int(image)}" for image in interest[order, 0]]
    buffer.finish(
        PatchSpec(size=size),
        StoreRows(order, sizes, [tour.name] * len(sizes), images, keypoints[order]),
        made_by=made_by,
        notes=to_notes("phototour", {"set": tour.name}),
    )
    if (path / PAIR_FILE).is_file():
        _write_pairs(tour, order, output)
    return output


def _write_pairs(tour: PhotoTour, order: NDArray[np.int64], output: Path) -> None:
    """Add the official pairs to the store, whose patches are sorted by point."""
    pairs = tour.pairs()
    row_of = np.empty(len(order), np.int64)
    row_of[order] = np.arange(len(order))
    stored = PatchPairs(row_of[pairs.left], row_of[pairs.right], pairs.is_match)
    write_official_pairs(output, stored)
