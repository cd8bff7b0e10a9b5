"""Read HPatches (Balntas et al. 2017): the released patches, the splits and the task lists.

    hpatches-release/SEQUENCE/{ref,e1..e5,h1..h5,t1..t5}.png    strips 65 px wide, 65 n high
    tasks/splits/splits.json                                    a, b, c, illum, view, full
    tasks/verif_{pos,neg_intra,neg_inter}_split-X.csv           s1,t1,idx1,s2,t2,idx2
    tasks/retr_{queries,distractors}_split-X.csv                s,idx

`tasks/` comes from the repository of the benchmark. It is looked for in the release, beside it, and
one folder further up: the benchmark keeps the release in its own `data/hpatches-release`.
The verification lists are large and often missing: they are then drawn again from their seed.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from matchserve.types import PatchSpec, UInt8
from training.data.parallel import progress
from training.data.store.notes import to_notes
from training.data.store.resumable import ResumableImport, StoreRows
from training.errors import DataError

SIDE = 65
Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = ("train", "test")
LEVELS = ("e", "h", "t")
STRIPS = ("ref", *(f"{level}{i}" for level in LEVELS for i in range(1, 6)))
VERIFICATION_ROWS = 1_000_000
WHERE = (
    "HPatches is at github.com/hpatches/hpatches-dataset (hpatches-release.tar.gz), its tasks at "
    "github.com/hpatches/hpatches-benchmark; give the folder that holds the sequences"
)


@dataclass(frozen=True, slots=True, eq=False)
class VerificationLists:
    """The pairs of the verification task, as arrays (N,) shared by its three kinds of pairs.

    The left patch is (`sequence`, `image0`, `index`). The right patch is in `image1`: of the same
    index (positives), of `index_intra` (negatives of the same sequence), or of `sequence_inter` and
    `index_inter` (negatives of any sequence). Sequences index the test list of the split; images
    are numbered 0 to 4.
    """

    sequence: NDArray[np.int64]
    image0: NDArray[np.int64]
    image1: NDArray[np.int64]
    index: NDArray[np.int64]
    index_intra: NDArray[np.int64]
    sequence_inter: NDArray[np.int64]
    index_inter: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class HPatches:
    """The release: its folders, and the number of patches of each sequence."""

    path: Path
    tasks: Path
    lengths: dict[str, int]

    @classmethod
    def open(cls, path: Path) -> HPatches:
        """List the sequences and count their patches.

        Raises:
            DataError: there is no sequence, or the splits are missing.
        """
        folders = (
            sorted(p for p in path.iterdir() if (p / "ref.png").is_file()) if path.is_dir() else []
        )
        if not folders:
            raise DataError(f"{path}: no SEQUENCE/ref.png in it. {WHERE}")
        whole = path.resolve()
        for folder in (whole, whole.parent, whole.parent.parent):
            tasks = folder / "tasks"
            if (tasks / "splits" / "splits.json").is_file():
                return cls(path, tasks, {f.name: _strip_length(f / "ref.png") for f in folders})
        raise DataError(f"{path / 'tasks/splits/splits.json'}: missing. {WHERE}")

    def strip(self, sequence: str, name: str, size: int | None = None) -> UInt8:
        """Return the patches of one strip, (n, 65, 65), or resized to `size` as in the papers.

        The papers resize bilinearly, without antialiasing.

        Raises:
            DataError: the strip is missing, damaged or not as long as the others of its sequence.
        """
        file = self.path / sequence / f"{name}.png"
        pixels = _read_strip(file)
        if len(pixels) != self.lengths[sequence] * SIDE:
            raise DataError(
                f"{file}: ends at patch {len(pixels) // SIDE}, its sequence has "
                f"{self.lengths[sequence]}"
            )
        patches = pixels.reshape(-1, SIDE, SIDE)
        if size is None:
            return patches
        small = [
            cv2.resize(patch, (size, size), interpolation=cv2.INTER_LINEAR) for patch in patches
        ]
        return np.asarray(small, np.uint8)

    def test_sequences(self, split: str) -> list[str]:
        """Return the test sequences of a split, in the order used to draw the task lists.

        Raises:
            DataError: the split does not exist, or one of its sequences is missing.
        """
        return self.sequences(split, "test")

    def sequences(self, split: str, part: Part) -> list[str]:
        """Return the training or the test sequences of a split, in the order of the file.

        Raises:
            DataError: the split has no such part, or one of its sequences is missing.
        """
        file = self.tasks / "splits" / "splits.json"
        try:
            splits = json.loads(file.read_text(encoding="utf-8"))
            names = [str(name) for name in splits[split][part]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file}: no {part} list of split {split!r}") from error
        for name in names:
            if name not in self.lengths:
                raise DataError(f"{self.path / name}: missing; it is in split {split}")
        return names

    def verification(self, split: str, rows: int = VERIFICATION_ROWS) -> VerificationLists:
        """Return the verification lists: read if all three exist, else drawn from the seed."""
        names = self.test_sequences(split)
        files = [
            self.tasks / f"verif_{kind}_split-{split}.csv"
            for kind in ("pos", "neg_intra", "neg_inter")
        ]
        if all(file.is_file() for file in files):
            return _read_verification(files, names)
        return draw_verification(names, [self.lengths[name] for name in names], rows)

    def retrieval(self, split: str) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        """Return queries and distractors as (sequence, index), in the order of the files.

        Raises:
            DataError: a list is missing or damaged.
        """
        lists = []
        for kind in ("queries", "distractors"):
            file = self.tasks / f"retr_{kind}_split-{split}.csv"
            lists.append([(str(row[0]), int(row[1])) for row in read_csv(file, ("s", "idx"))])
        return lists[0], lists[1]


def draw_verification(names: list[str], lengths: list[int], rows: int) -> VerificationLists:
    """Draw the lists as the authors of the benchmark did: NumPy's legacy generator, seed 42.

    The lists are equal only if the draws are in their order: sequences, two indices for every row,
    two images for every row, then the sequences and indices of the inter pairs.
    """
    rng = np.random.RandomState(42)
    length = np.array(lengths)
    sequence = rng.choice(len(names), rows)
    index = np.array([rng.choice(np.arange(n), 2, replace=False) for n in length[sequence]])
    image = np.array([rng.choice(np.arange(5), 2, replace=False) for _ in range(rows)])
    other = rng.choice(len(names), rows)
    index_other = np.array([rng.randint(n) for n in length[other]])
    return VerificationLists(
        sequence, image[:, 0], image[:, 1], index[:, 0], index[:, 1], other, index_other
    )


def read_csv(path: Path, header: tuple[str, ...]) -> list[list[str]]:
    """Read the rows of a CSV file with this header.

    Raises:
        DataError: the file is missing, or its header or a row is not as expected.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise DataError(f"{path}: missing. {WHERE}") from error
    if not rows or tuple(rows[0]) != header:
        raise DataError(f"{path}: line 1: expected {','.join(header)}")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise DataError(f"{path}: line {number}: expected {len(header)} values")
    return rows[1:]


def import_split(
    path: Path, output: Path, split: str, *, size: int = 32, made_by: str = ""
) -> list[Path]:
    """Write the sequences of a split as two patch stores, OUTPUT-train and OUTPUT-test.

    A store that exists already is kept, so that an interrupted import resumes.

    Raises:
        DataError: a file is missing or damaged, or the split has no training sequences.
    """
    release = HPatches.open(path)
    # Read both lists first: a wrong split shall not leave half of the result.
    parts = {part: release.sequences(split, part) for part in PARTS}
    stores = []
    for part, names in parts.items():
        store = output.with_name(f"{output.name}-{part}")
        if not store.exists():
            import_hpatches(path, store, size=size, names=names, made_by=made_by)
        stores.append(store)
    return stores


def import_hpatches(
    path: Path,
    output: Path,
    *,
    size: int = 32,
    names: Iterable[str] | None = None,
    made_by: str = "",
) -> Path:
    """Write the release as a patch store of 16 patches per class; an interrupted import resumes.

    `names` are the sequences to write; all of the release if it is not given.

    Raises:
        DataError: a file is missing or damaged, or `output` exists.
    """
    release = HPatches.open(path)
    names = sorted(release.lengths if names is None else names)
    total = sum(release.lengths[name] for name in names)
    source = f"hpatches-{len(names)}-{total}"
    buffer = ResumableImport(output, (total * len(STRIPS), size, size), source)
    starts = np.cumsum([0, *(release.lengths[name] for name in names)])
    steps = range(buffer.done, len(names))
    for number in progress(steps, total=len(steps), label="sequences"):
        strips = [release.strip(names[number], strip, size) for strip in STRIPS]
        # Group the patches of one point, which come from different strips.
        rows = np.stack(strips, axis=1).reshape(-1, size, size)
        buffer.write(int(starts[number]) * len(STRIPS), rows, step=number + 1)
    scenes = [name for name in names for _ in range(release.lengths[name])]
    images = [f"{name}/{strip}" for name in scenes for strip in STRIPS]
    buffer.finish(
        PatchSpec(size=size),
        StoreRows(
            np.arange(total * len(STRIPS)), np.full(total, len(STRIPS)), scenes, images, None
        ),
        made_by=made_by,
        notes=to_notes("hpatches", {"strips": list(STRIPS)}),
    )
    return output


def _read_verification(files: list[Path], names: list[str]) -> VerificationLists:
    header = ("s1", "t1", "idx1", "s2", "t2", "idx2")
    number = {name: index for index, name in enumerate(names)}
    columns: list[NDArray[Any]] = []
    for file in files:
        rows = read_csv(file, header)
        try:
            numeric = [
                [number[r[0]], int(r[1]), int(r[2]), number[r[3]], int(r[4]), int(r[5])]
                for r in rows
            ]
        except (KeyError, ValueError) as error:
            raise DataError(f"{file}: unknown sequence or invalid number: {error}") from error
        columns.append(np.array(numeric, np.int64).reshape(-1, 6))
    same, intra, inter = columns
    return VerificationLists(
        same[:, 0], same[:, 1], same[:, 4], same[:, 2], intra[:, 5], inter[:, 3], inter[:, 5]
    )


def _strip_length(file: Path) -> int:
    """Return the number of patches, from the PNG header alone."""
    try:
        with Pillow.open(file, formats=("PNG",)) as picture:
            width, height = picture.size
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{file}: not a readable PNG, {error}") from error
    if width != SIDE or height % SIDE:
        raise DataError(f"{file}: expected {SIDE} x {SIDE} n pixels, found {width} x {height}")
    return height // SIDE


def _read_strip(file: Path) -> UInt8:
    try:
        with Pillow.open(file, formats=("PNG",)) as picture:
            pixels = np.asarray(picture.convert("L"), np.uint8)
    except (OSError, SyntaxError, ValueError) as error:
        size = file.stat().st_size if file.is_file() else 0
        raise DataError(f"{file}: missing, damaged or cut off at byte {size}, {error}") from error
    if pixels.shape[1] != SIDE or len(pixels) % SIDE:
        raise DataError(f"{file}: expected {SIDE} x {SIDE} n pixels, found {pixels.shape}")
    return pixels
