"""Read patch stores: patches grouped into classes; a class shows one physical point.

A store is a directory:

    patches.npy     uint8   (P, S, S)   the patches of one class are contiguous
    offsets.npy     int64   (C + 1,)    class c owns patches offsets[c] .. offsets[c + 1]
    scenes.npy      int32   (C,)        scene of each class, an index into store.json "scenes"
    labels.npy      int32   (C,)        label of each class, an index into store.json "labels";
                                        only if classes have labels
    sources.npy     int32   (P,)        image of each patch, an index into store.json "images"
    keypoints.npy   float32 (P, 4)      x, y, sigma, angle in that image; NaN if unknown
    store.json      format_version, patch_spec, scenes, images, made_by, notes, counts, digest,
                    blocks: a checksum for each megabyte of patches.npy

`digest` is the SHA-256 of `patches.npy` followed by `offsets.npy`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.archives import ARCHIVE_ERRORS
from matchserve.errors import InvalidParameter
from matchserve.types import Float32, Int32, PatchSpec, UInt8
from training.data.store.blocks import BlockChecksums
from training.errors import DataError

FORMAT_VERSION = 1
JSON_FILE = "store.json"
PATCHES_FILE = "patches.npy"

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PatchStore:
    """A store opened for reading, or a view of some of its classes.

    `classes` holds the class numbers of this view. Patch indices always refer to the whole store,
    so views of one store can be mixed.
    """

    path: Path
    spec: PatchSpec
    pixels: UInt8
    offsets: Int64
    class_scenes: Int32
    class_labels: Int32
    sources: Int32
    keypoints: Float32
    scenes: tuple[str, ...]
    labels: tuple[str, ...]
    images: tuple[str, ...]
    digest: str
    made_by: str
    classes: Int64
    blocks: BlockChecksums | None = None

    @classmethod
    def open(cls, path: Path | str) -> PatchStore:
        """Open the store at `path`; the patches are memory-mapped, the other files read.

        Raises:
            DataError: a file is missing, damaged or contradicts the others.
        """
        directory = Path(path)
        head = _read_head(directory)
        spec = _read_spec(directory, head)
        offsets = _read_array(directory, "offsets.npy", np.int64, (None,))
        if len(offsets) < 2 or offsets[0] != 0 or bool((np.diff(offsets) < 1).any()):
            raise DataError(f"{directory / 'offsets.npy'}: expected increasing offsets from 0")
        patches, classes = int(offsets[-1]), len(offsets) - 1
        store = cls(
            path=directory,
            spec=spec,
            pixels=_read_array(directory, PATCHES_FILE, np.uint8, (patches, spec.size, spec.size)),
            offsets=offsets,
            class_scenes=_read_array(directory, "scenes.npy", np.int32, (classes,)),
            class_labels=(
                _read_array(directory, "labels.npy", np.int32, (classes,))
                if "labels" in head
                else np.zeros(classes, np.int32)
            ),
            sources=_read_array(directory, "sources.npy", np.int32, (patches,)),
            keypoints=_read_array(directory, "keypoints.npy", np.float32, (patches, 4)),
            scenes=tuple(head["scenes"]),
            labels=tuple(head.get("labels", [""])),
            images=tuple(head["images"]),
            digest=str(head["digest"]),
            made_by=str(head["made_by"]),
            classes=np.arange(classes, dtype=np.int64),
            blocks=BlockChecksums.from_json(directory / PATCHES_FILE, head),
        )
        _check_names(store)
        return store

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def class_starts(self) -> Int64:
        """The index of the first patch of each class of this view."""
        starts: Int64 = self.offsets[self.classes]
        return starts

    @property
    def class_sizes(self) -> Int64:
        """The number of patches of each class of this view."""
        sizes: Int64 = self.offsets[self.classes + 1] - self.offsets[self.classes]
        return sizes

    @property
    def patch_count(self) -> int:
        """The number of patches of this view."""
        return int(self.class_sizes.sum())

    def patches(self, indices: NDArray[np.integer[Any]]) -> UInt8:
        """Return the patches at `indices`, uint8 (N, 1, S, S), in that order.

        Raises:
            DataError: the file is damaged where the patches are.
        """
        places = np.asarray(indices, np.int64).ravel()
        if self.blocks is not None and len(places):
            length = self.spec.size * self.spec.size
            header = self.blocks.path.stat().st_size - self.pixels.nbytes
            self.blocks.check(header + places % len(self.pixels) * length, length)
        rows: UInt8 = self.pixels[places]
        return rows[:, None]

    def select_classes(self, mask: NDArray[np.bool_]) -> PatchStore:
        """Return a view of the classes where `mask` (one flag per class of this view) is true."""
        flags = np.asarray(mask, np.bool_)
        if flags.shape != self.classes.shape:
            raise InvalidParameter(f"mask has shape {flags.shape}, expected {self.classes.shape}")
        return replace(self, classes=self.classes[flags])

    def split(self, scene_names: Iterable[str]) -> PatchStore:
        """Return a view of the classes of the named scenes; `night/*` names all that begin so.

        Raises:
            DataError: the store has no scene of that name.
        """
        wanted: list[int] = []
        for name in scene_names:
            if name in self.scenes:
                wanted.append(self.scenes.index(name))
                continue
            fitting = [n for n, scene in enumerate(self.scenes) if fnmatchcase(scene, name)]
            if not fitting:
                known = ", ".join(self.scenes[:20])
                raise DataError(f"{self.path}: no scene {name!r}; it has: {known}")
            wanted += fitting
        return self.select_classes(np.isin(self.class_scenes[self.classes], wanted))

    def with_labels(self, labels: Iterable[str]) -> PatchStore:
        """Return a view of the classes that have one of the labels.

        Raises:
            DataError: the store has no such label.
        """
        wanted = []
        for label in labels:
            if label not in self.labels:
                raise DataError(
                    f"{self.path}: no class has the label {label!r}; "
                    f"its labels are: {', '.join(filter(None, self.labels)) or 'none'}"
                )
            wanted.append(self.labels.index(label))
        return self.select_classes(np.isin(self.class_labels[self.classes], wanted))

    def verify(self) -> None:
        """Read all patches and compare them with the digest.

        Raises:
            DataError: the patches differ from those that were written.
        """
        hasher = hashlib.sha256()
        for name in (PATCHES_FILE, "offsets.npy"):
            with (self.path / name).open("rb") as file:
                while block := file.read(1 << 22):
                    hasher.update(block)
        if hasher.hexdigest() != self.digest:
            raise DataError(f"{self.path / PATCHES_FILE}: content does not match its digest")


def spec_to_json(spec: PatchSpec) -> dict[str, Any]:
    """Return `spec` as plain JSON values."""
    return asdict(spec)


def _read_head(directory: Path) -> Mapping[str, Any]:
    path = directory / JSON_FILE
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing; expected a patch store there") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected JSON, {error}") from error
    if not isinstance(head, dict) or head.get("format_version") != FORMAT_VERSION:
        raise DataError(f"{path}: expected format_version {FORMAT_VERSION}")
    for key, kind in (("scenes", list), ("images", list), ("digest", str), ("made_by", str)):
        if not isinstance(head.get(key), kind):
            raise DataError(f"{path}: expected {key!r} to be a {kind.__name__}")
    return head


def _read_spec(directory: Path, head: Mapping[str, Any]) -> PatchSpec:
    try:
        return PatchSpec(**head["patch_spec"])
    except (KeyError, TypeError, InvalidParameter) as error:
        raise DataError(f"{directory / JSON_FILE}: expected a patch_spec, {error}") from error


def _read_array(
    directory: Path, name: str, dtype: type[np.generic], shape: tuple[int | None, ...]
) -> NDArray[Any]:
    path = directory / name
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing") from error
    except ARCHIVE_ERRORS as error:
        raise DataError(f"{path}: expected a complete .npy array, {error}") from error
    fits = len(array.shape) == len(shape) and all(
        want is None or want == have for want, have in zip(shape, array.shape, strict=True)
    )
    if array.dtype != dtype or not fits:
        raise DataError(
            f"{path}: expected {np.dtype(dtype)} {shape}, found {array.dtype} {array.shape}"
        )
    return array if name == PATCHES_FILE else np.array(array)


def _check_names(store: PatchStore) -> None:
    for name, values, names in (
        ("scenes.npy", store.class_scenes, store.scenes),
        ("labels.npy", store.class_labels, store.labels),
        ("sources.npy", store.sources, store.images),
    ):
        if len(values) and not (int(values.min()) >= 0 and int(values.max()) < len(names)):
            raise DataError(f"{store.path / name}: expected indices below {len(names)}")
