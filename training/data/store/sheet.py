"""Draw a contact sheet of a store: one row of patches per class."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from matchserve.files import write_whole
from matchserve.types import UInt8
from training.data.store.reader import PatchStore

PATCH_PX = 48
_GAP = 4
_LABEL_PX = 44


def contact_sheet(
    store: PatchStore, *, classes: int = 100, per_class: int = 8, columns: int = 4, seed: int = 0
) -> UInt8:
    """Draw random classes as an RGB image (H, W, 3), each row with its class number."""
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(store))[:classes])
    strips = [_strip(store, int(position), per_class) for position in chosen]
    rows = -(-len(strips) // columns)
    height, width = strips[0].shape[:2]
    sheet = np.full((rows * (height + _GAP), columns * (width + 3 * _GAP), 3), 255, np.uint8)
    for number, strip in enumerate(strips):
        y, x = number % rows * (height + _GAP), number // rows * (width + 3 * _GAP)
        sheet[y : y + height, x : x + width] = strip
    return sheet


def write_sheet(path: Path, sheet: UInt8) -> None:
    """Write a contact sheet as PNG."""
    _, data = cv2.imencode(".png", cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data.tobytes())


def _strip(store: PatchStore, position: int, per_class: int) -> UInt8:
    """Draw one class: its number, then its patches, enlarged without smoothing."""
    strip = np.full((PATCH_PX, _LABEL_PX + per_class * (PATCH_PX + 2), 3), 255, np.uint8)
    label = str(int(store.classes[position]))
    cv2.putText(strip, label, (0, 28), cv2.FONT_HERSHEY_PLAIN, 0.8, (120, 0, 0), 1, cv2.LINE_AA)
    start, size = int(store.class_starts[position]), int(store.class_sizes[position])
    for number, patch in enumerate(
        store.patches(np.arange(start, start + min(size, per_class)))[:, 0]
    ):
        drawn = cv2.resize(patch, (PATCH_PX, PATCH_PX), interpolation=cv2.INTER_NEAREST)
        x = _LABEL_PX + number * (PATCH_PX + 2)
        strip[:, x : x + PATCH_PX] = drawn[:, :, None]
    return strip
