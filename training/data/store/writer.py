"""Write patch stores: stream classes to disk, and name the store only when it is complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from matchserve.errors import InvalidParameter
from matchserve.files import WholeDirectory
from matchserve.types import PatchSpec, UInt8
from training.data.store.blocks import block_checksums
from training.data.store.reader import (
    FORMAT_VERSION,
    JSON_FILE,
    PATCHES_FILE,
    spec_to_json,
)
from training.errors import DataError


class StoreWriter:
    """Writes a patch store; a context manager.

    Patches go straight to disk; about 30 bytes per patch stay in memory. The store gets its name
    when the `with` block ends without an error; otherwise nothing is left.

        with StoreWriter(path, spec, made_by="data scenes ...") as writer:
            writer.add_class(patches, scene="harbour", images=["a.jpg", "b.jpg"])
    """

    def __init__(self, path: Path | str, spec: PatchSpec, *, made_by: str, notes: str = "") -> None:
        self.path = Path(path)
        self.spec = spec
        self._made_by, self._notes = made_by, notes
        self._refuse_existing()
        self._directory = WholeDirectory(self.path)
        self._temp = self._directory.temporary
        self._file: BinaryIO = (self._temp / PATCHES_FILE).open("wb")
        self._header_bytes = self._file.write(_header(0, spec.size))
        self._count = 0
        self._sizes: list[NDArray[np.int64]] = []
        self._class_scenes: list[NDArray[np.int32]] = []
        self._sources: list[NDArray[np.int32]] = []
        self._keypoints: list[NDArray[np.float32]] = []
        self._class_labels: list[NDArray[np.int32]] = []
        self._scenes: dict[str, int] = {}
        self._labels: dict[str, int] = {}
        self._images: dict[str, int] = {}

    def add_class(
        self,
        patches: UInt8,
        *,
        scene: str,
        images: Sequence[str],
        keypoints: NDArray[Any] | None = None,
        label: str = "",
    ) -> None:
        """Append one class: `patches` (K, S, S), an image name and keypoint row for each."""
        sizes = np.array([len(patches)])
        self.add_classes(
            patches, sizes, scene=scene, images=images, keypoints=keypoints, label=label
        )

    def add_classes(
        self,
        patches: UInt8,
        sizes: NDArray[Any],
        *,
        scene: str,
        images: Sequence[str],
        keypoints: NDArray[Any] | None = None,
        label: str = "",
    ) -> None:
        """Append several classes of one scene and label; `sizes` are the numbers of rows of each.

        Without a `label` the classes have the empty one.
        """
        side, rows = self.spec.size, len(patches)
        if patches.dtype != np.uint8 or patches.shape[1:] != (side, side):
            raise InvalidParameter(
                f"patches are {patches.dtype} {patches.shape}, expected uint8 (N, {side}, {side})"
            )
        counts = np.asarray(sizes, np.int64)
        if counts.sum() != rows or bool((counts < 1).any()) or len(images) != rows:
            raise InvalidParameter(
                f"{rows} patches need class sizes of at least 1 that sum to it "
                f"(sum: {counts.sum()}) and one image name each (names: {len(images)})"
            )
        points = np.full((rows, 4), np.nan) if keypoints is None else np.asarray(keypoints)
        if points.shape != (rows, 4):
            raise InvalidParameter(f"keypoints have shape {points.shape}, expected ({rows}, 4)")
        self._file.write(np.ascontiguousarray(patches).data)
        self._count += rows
        self._sizes.append(counts)
        scene_index = self._scenes.setdefault(scene, len(self._scenes))
        self._class_scenes.append(np.full(len(counts), scene_index, np.int32))
        label_index = self._labels.setdefault(label, len(self._labels))
        self._class_labels.append(np.full(len(counts), label_index, np.int32))
        index = [self._images.setdefault(name, len(self._images)) for name in images]
        self._sources.append(np.array(index, np.int32))
        self._keypoints.append(points.astype(np.float32))

    def finish(self) -> Path:
        """Complete the store and give it its name; called at the end of the `with` block.

        Raises:
            DataError: nothing was added, the disk is full, or the path exists by now.
        """
        try:
            self._finish()
        except BaseException:
            self.discard()
            raise
        return self.path

    def _finish(self) -> None:
        if not self._count:
            raise DataError(f"{self.path}: nothing to write: no class was added")
        self._file.seek(0)
        self._file.write(_header(self._count, self.spec.size))
        self._file.close()
        self._write_small_files()
        self._refuse_existing()
        try:
            self._directory.publish()
        except OSError as error:
            raise DataError(f"{self.path}: cannot be written ({error.strerror})") from error

    def discard(self) -> None:
        """Remove everything written so far."""
        # On a full disk closing fails too, because it flushes the buffer.
        with suppress(OSError):
            self._file.close()
        self._directory.discard()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.discard()

    def _refuse_existing(self) -> None:
        if self.path.exists():
            raise DataError(f"{self.path}: already exists; a store is never overwritten")

    def _write_small_files(self) -> None:
        sizes = np.concatenate(self._sizes)
        np.save(self._temp / "offsets.npy", np.concatenate([[0], np.cumsum(sizes)]))
        np.save(self._temp / "scenes.npy", np.concatenate(self._class_scenes))
        np.save(self._temp / "sources.npy", np.concatenate(self._sources))
        np.save(self._temp / "keypoints.npy", np.concatenate(self._keypoints))
        head: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "patch_spec": spec_to_json(self.spec),
            "scenes": list(self._scenes),
            "images": list(self._images),
            "made_by": self._made_by,
            "notes": self._notes,
            "counts": {
                "patches": self._count,
                "classes": len(sizes),
                "scenes": len(self._scenes),
                "images": len(self._images),
            },
            "digest": self._digest(),
            "blocks": block_checksums(self._temp / PATCHES_FILE),
        }
        if any(self._labels):
            np.save(self._temp / "labels.npy", np.concatenate(self._class_labels))
            head["labels"] = list(self._labels)
        text = json.dumps(head, indent=1, ensure_ascii=False)
        (self._temp / JSON_FILE).write_text(text, encoding="utf-8")

    def _digest(self) -> str:
        hasher = hashlib.sha256()
        for name in (PATCHES_FILE, "offsets.npy"):
            with (self._temp / name).open("rb") as file:
                while block := file.read(1 << 22):
                    hasher.update(block)
        return hasher.hexdigest()


def _header(rows: int, side: int) -> bytes:
    # numpy pads the header so that the first axis can grow: the final header has the length of the
    # first one. tests of the writer check this.
    buffer = BytesIO()
    described = {"descr": "|u1", "fortran_order": False, "shape": (rows, side, side)}
    npy_format.write_array_header_1_0(buffer, described)
    return buffer.getvalue()
