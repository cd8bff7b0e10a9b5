"""Match a large generated collection twice, and print time and memory.

    python docs/research/measure_views.py --work /tmp/views --views 1000

Views of 640x480 are drawn from a wall of textures that a camera passes in rows, with perspective.
Both runs are `matchserve collection match --pairs retrieval:20` with two workers.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import psutil

from matchserve.pattern import generate

SIZE = (640, 480)
STEP = 160  # pixels between neighbouring views: they overlap by three quarters
ROW = 40  # views


def draw_views(folder: Path, count: int) -> None:
    """Write views of a wall, row by row; neighbours in a row and between rows overlap."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = -(-count // ROW)
    width, height = SIZE[0] + STEP * ROW, SIZE[1] + STEP * rows
    wall = np.zeros((height, width), np.uint8)
    tile = 800
    for top in range(0, height, tile):
        for left in range(0, width, tile):
            part = wall[top : top + tile, left : left + tile]
            seed = top // tile * 1000 + left // tile
            part[:] = generate((tile, tile), seed=seed)[: part.shape[0], : part.shape[1]]
    chance = np.random.default_rng(0)
    corners = np.array([[0, 0], [SIZE[0], 0], SIZE, [0, SIZE[1]]], np.float32)
    for number in range(count):
        shift = np.array([number % ROW * STEP, number // ROW * STEP], np.float32)
        seen = corners + shift + chance.uniform(0, 60, (4, 2)).astype(np.float32)
        matrix = cv2.getPerspectiveTransform(seen, corners)
        view = cv2.warpPerspective(wall, matrix, SIZE, flags=cv2.INTER_AREA)
        noisy = view + chance.normal(0, 3, view.shape)
        cv2.imwrite(str(folder / f"{number:04d}.jpg"), np.clip(noisy, 0, 255).astype(np.uint8))


def run(folder: Path, output: Path) -> dict[str, float]:
    """Match once; return seconds, CPU seconds and the largest memory of driver and worker."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    command = ["collection", "match", folder, "-o", output, "--pairs", "retrieval:20"]
    command += ["--workers", 2]
    process = subprocess.Popen([sys.executable, "-m", "matchserve", *map(str, command)])  # noqa: S603
    driver = worker = 0
    while process.poll() is None:
        try:
            parent = psutil.Process(process.pid)
            driver = max(driver, parent.memory_info().rss)
            sizes = [child.memory_info().rss for child in parent.children()]
            worker = max([worker, *sizes])
        except psutil.Error:
            pass
        time.sleep(0.2)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "exit_code": process.returncode,
        "wall_s": round(time.perf_counter() - start, 1),
        "cpu_s": round(cpu, 1),
        "driver_mb": driver // 1_000_000,
        "worker_mb": worker // 1_000_000,
    }


def main() -> None:
    """Draw the views, match them twice, and print the figures of both runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--views", type=int, default=1000)
    arguments = parser.parse_args()
    folder, output = arguments.work / "images", arguments.work / "matched"
    if not folder.is_dir():
        draw_views(folder, arguments.views)
    for number in (1, 2):
        print(number, json.dumps(run(folder, output)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
