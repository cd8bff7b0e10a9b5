"""An import that can be broken off: patches gather in a file beside the store to be.

`OUTPUT.import/` holds `pixels.npy` and `state.json` (source and steps done). The same command
goes on there; when all is read, the store is written and the folder removed.
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
    """How gathered patches become classes.

    `order` of the rows, divided into classes of `sizes`, each of a scene in `scenes`; image name
    and keypoint (or None) of each row in that order.
    """

    order: NDArray[Any]
    sizes: NDArray[Any]
    scenes: Sequence[str]
    images: Sequence[str]
    keypoints: NDArray[Any] | None


class Resumable:
    """Patches (P, S, S) filled in steps; `done` says how many steps an earlier run finished."""

    def __init__(self, output: Path, shape: tuple[int, int, int], source: str) -> None:
        if output.exists():
            raise DataError(f"{output}: already there; a store is never overwritten")
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
        """Put patches at rows from `start`; `step` steps are then done."""
        self._pixels[start : start + len(patches)] = patches
        self._pixels.flush()
        state = json.dumps({**self._stamp, "done": step})
        write_text_whole(self._folder / "state.json", state)
        self.done = step

    def finish(self, spec: PatchSpec, rows: StoreRows, *, made_by: str, notes: str) -> None:
        """Write the store and remove what was gathered."""
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
    """One past the last class of a block: of one scene, and not too large."""
    last = first + 1
    base = int(ends[first])
    while last < len(ends) and scenes[last] == scenes[first] and int(ends[last]) - base < _BLOCK:
        last += 1
    return last
