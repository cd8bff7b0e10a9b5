"""Import patches in steps that an interrupted command can resume.

`OUTPUT.import/` holds `pixels.npy` and `state.json` (the source and the number of steps done).
Running the same command again continues from there. When all patches have been read, the store is
written and the folder is removed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.files import write_text_whole
from matchserve.types import PatchSpec, UInt8
from training.data.store.writer import StoreWriter
from training.errors import DataError

_BLOCK = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class StoreRows:
    """How imported patches are grouped into classes.

    `order` sorts the rows by class; `sizes` and `scenes` hold the number of rows and the scene of
    each class; `images` and `keypoints` hold the image name and keypoint of each row in that order.
    """

    order: NDArray[Any]
    sizes: NDArray[Any]
    scenes: Sequence[str]
    images: Sequence[str]
    keypoints: NDArray[Any] | None


class ResumableImport:
    """Patches (P, S, S) on disk, filled in steps; `done` is the number of finished steps."""

    def __init__(self, output: Path, shape: tuple[int, int, int], source: str) -> None:
        if output.exists():
            raise DataError(f"{output}: already exists; a store is never overwritten")
        self._output = output
        self._folder = output.with_name(f"{output.name}.import")
        self._stamp = {"source": source, "shape": list(shape)}
        self.done = self._read_state()
        if not self.done:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
        mode: Any = "r+" if self.done else "w+"
        self._pixels = np.lib.format.open_memmap(
            self._folder / "pixels.npy", mode=mode, dtype=np.uint8, shape=shape
        )

    def write(self, start: int, patches: UInt8, *, step: int) -> None:
        """Write patches to the rows from `start` on, and record that `step` steps are done."""
        self._pixels[start : start + len(patches)] = patches
        self._pixels.flush()
        state = json.dumps({**self._stamp, "done": step})
        write_text_whole(self._folder / "state.json", state)
        self.done = step

    def finish(self, spec: PatchSpec, rows: StoreRows, *, made_by: str, notes: str) -> None:
        """Write the store and remove the temporary folder."""
        ends, first = np.cumsum(rows.sizes), 0
        with StoreWriter(self._output, spec, made_by=made_by, notes=notes) as writer:
            while first < len(rows.sizes):
                last = _block_end(rows.scenes, ends, first)
                low, high = int(ends[first] - rows.sizes[first]), int(ends[last - 1])
                writer.add_classes(
                    np.asarray(self._pixels[rows.order[low:high]]),
                    rows.sizes[first:last],
                    scene=rows.scenes[first],
                    images=list(rows.images[low:high]),
                    keypoints=None if rows.keypoints is None else rows.keypoints[low:high],
                )
                first = last
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read_state(self) -> int:
        try:
            state = json.loads((self._folder / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 0
        fits = all(state.get(key) == value for key, value in self._stamp.items())
        return int(state["done"]) if fits and (self._folder / "pixels.npy").is_file() else 0


def _block_end(scenes: Sequence[str], ends: NDArray[np.int64], first: int) -> int:
    """Return the end of the block of classes from `first`: one scene, limited in size."""
    last = first + 1
    base = int(ends[first])
    while last < len(ends) and scenes[last] == scenes[first] and int(ends[last]) - base < _BLOCK:
        last += 1
    return last
