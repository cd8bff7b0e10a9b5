"""Generate small data sets in the exact layouts of PhotoTour and HPatches.

The patches are views of random textures. They serve to try a whole reproduction without a download;
figures measured on them say nothing about the real data sets.
"""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
from PIL import Image as Pillow

from matchserve.types import UInt8
from training.data.public.hpatches import SIDE as STRIP_SIDE
from training.data.public.hpatches import STRIPS
from training.data.public.phototour import PAIR_FILE, PER_SHEET, SHEET, SIDE

SETS = ("liberty", "notredame", "yosemite")
# How far the views of a level are turned, scaled and moved: reference, easy, hard, tough.
_STRENGTH = {"r": 0.0, "e": 0.5, "h": 1.0, "t": 1.6}


def generate_phototour(folder: Path, *, points: int, seed: int, pairs: int = 1000) -> Path:
    """Write one set: sheets, info, interest points, and a list of pairs, half of them matches."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 4, points)
    owner = np.repeat(np.arange(points), sizes)
    textures = [_texture(rng) for _ in range(points)]
    patches = np.stack([_view(textures[point], rng, 1.0, SIDE) for point in owner])
    folder.mkdir(parents=True)
    for number in range(-(-len(patches) // PER_SHEET)):
        write_sheet(patches[number * PER_SHEET : (number + 1) * PER_SHEET], number, folder)
    (folder / "info.txt").write_text("".join(f"{point} 0\n" for point in owner), "utf-8")
    lines = [f"{point % 7} {8 * point}.5 {point} 0.25 1\n" for point in owner]
    (folder / "interest.txt").write_text("".join(lines), "utf-8")
    (folder / PAIR_FILE).write_text("".join(_pairs(owner, pairs, rng)), "utf-8")
    return folder


def write_sheet(patches: UInt8, number: int, folder: Path) -> None:
    """Write up to 256 patches (N, 64, 64) as the sheet of that number."""
    sheet = np.zeros((SHEET, SHEET), np.uint8)
    for index, patch in enumerate(patches):
        row, column = divmod(index, SHEET // SIDE)
        sheet[row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE] = patch
    Pillow.fromarray(sheet).save(folder / f"patches{number:04d}.bmp")


def generate_hpatches(base: Path, *, points: int, seed: int) -> Path:
    """Write a release of six sequences with `points` each, and tasks/ beside it; return it.

    Split a has four training and two test sequences; split full tests all six.
    """
    rng = np.random.default_rng(seed)
    names = [f"{kind}_{number}" for kind in "iv" for number in range(3)]
    release = base / "hpatches-release"
    for name in names:
        textures = [_texture(rng) for _ in range(points)]
        (release / name).mkdir(parents=True)
        for strip in STRIPS:
            strength = _STRENGTH[strip[0]]
            views = [_view(texture, rng, strength, STRIP_SIDE) for texture in textures]
            Pillow.fromarray(np.concatenate(views)).save(release / name / f"{strip}.png")
    test = ["i_2", "v_2"]
    parts = {
        "a": {"train": [name for name in names if name not in test], "test": test},
        "full": {"train": [], "test": names},
    }
    tasks = base / "tasks"
    (tasks / "splits").mkdir(parents=True)
    (tasks / "splits" / "splits.json").write_text(json.dumps(parts), "utf-8")
    for split, part in parts.items():
        for kind, count in (("queries", 40), ("distractors", 80)):
            rows = [f"{rng.choice(part['test'])},{rng.integers(points)}\n" for _ in range(count)]
            path = tasks / f"retr_{kind}_split-{split}.csv"
            path.write_text("s,idx\n" + "".join(rows), "utf-8")
    return release


def _texture(rng: np.random.Generator) -> UInt8:
    """Draw a grey texture of 128 x 128 pixels with structure of several sizes."""
    layers = [
        weight * cv2.resize(rng.random((cells, cells)), (128, 128), interpolation=cv2.INTER_CUBIC)
        for cells, weight in ((5, 1.0), (11, 0.7), (23, 0.4))
    ]
    whole = np.sum(layers, axis=0)
    low, high = whole.min(), whole.max()
    return np.asarray(255 * (whole - low) / (high - low), np.uint8)


def _view(texture: UInt8, rng: np.random.Generator, strength: float, side: int) -> UInt8:
    """Return the middle of a texture, a little turned, scaled, moved, relit and noisy."""
    centre = texture.shape[0] / 2
    turn = strength * rng.uniform(-12, 12)
    scale = np.exp(strength * rng.uniform(-0.12, 0.12))
    matrix = cv2.getRotationMatrix2D((centre, centre), turn, scale)
    matrix[:, 2] += strength * rng.uniform(-3, 3, 2) + side / 2 - centre
    patch = cv2.warpAffine(texture, matrix, (side, side), borderMode=cv2.BORDER_REFLECT)
    gain, bias = 1 + strength * rng.uniform(-0.2, 0.2), strength * rng.uniform(-15, 15)
    noise = rng.normal(0, 2 + 3 * strength, patch.shape)
    return np.asarray(np.clip(gain * patch + bias + noise, 0, 255), np.uint8)


def _pairs(owner: np.ndarray, count: int, rng: np.random.Generator) -> list[str]:
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    lines = []
    for number in range(count):
        point = int(rng.integers(len(starts)))
        other = point if number % 2 else (point + 1 + rng.integers(len(starts) - 1)) % len(starts)
        left, right = starts[point], starts[other] + (1 if number % 2 else 0)
        lines.append(f"{left} {owner[left]} 0 {right} {owner[right]} 0 0\n")
    return lines
