"""Small copies of public data sets in their exact formats on disk."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image as Pillow

from training.data.public.hpatches import STRIPS
from training.data.public.phototour import PAIR_FILE

HPATCHES_LENGTHS = {"i_one": 6, "v_two": 9, "v_three": 5}


def write_phototour(folder: Path, patches: np.ndarray, points: np.ndarray) -> Path:
    """Write `patches` (N, 64, 64) of the 3D `points` (N,), without a list of pairs."""
    folder.mkdir(parents=True)
    for number in range(-(-len(patches) // 256)):
        sheet = np.zeros((1024, 1024), np.uint8)
        for index, patch in enumerate(patches[number * 256 : (number + 1) * 256]):
            row, column = divmod(index, 16)
            sheet[row * 64 : row * 64 + 64, column * 64 : column * 64 + 64] = patch
        Pillow.fromarray(sheet).save(folder / f"patches{number:04d}.bmp")
    (folder / "info.txt").write_text("".join(f"{p} 0\n" for p in points))
    (folder / "interest.txt").write_text(
        "".join(f"{i % 7} {i}.5 {2 * i} 0.25 {i % 4}\n" for i in range(len(patches)))
    )
    return folder


def write_pair_list(folder: Path, points: np.ndarray, pairs: list[tuple[int, int]]) -> None:
    """Write the official list of pairs."""
    rows = [f"{i} {points[i]} 0 {j} {points[j]} 0\n" for i, j in pairs]
    (folder / PAIR_FILE).write_text("".join(rows))


def write_hpatches(base: Path) -> Path:
    """Write a release of noise patches and the task lists of split a; return the release."""
    folder = base / "hpatches-release"
    rng = np.random.default_rng(1)
    for name, count in HPATCHES_LENGTHS.items():
        (folder / name).mkdir(parents=True)
        for strip in STRIPS:
            pixels = rng.integers(0, 256, (65 * count, 65)).astype(np.uint8)
            Pillow.fromarray(pixels).save(folder / name / f"{strip}.png")
    tasks = base / "tasks"
    (tasks / "splits").mkdir(parents=True)
    splits = {"a": {"test": ["v_two", "i_one"], "train": ["v_three"], "name": "a"}}
    (tasks / "splits" / "splits.json").write_text(json.dumps(splits))
    (tasks / "retr_queries_split-a.csv").write_text("s,idx\nv_two,3\ni_one,0\n")
    (tasks / "retr_distractors_split-a.csv").write_text(
        "s,idx\nv_two,0\ni_one,1\nv_two,8\ni_one,5\n"
    )
    return folder
