"""Describe a generated image as wide as one of a gigapixel in windows, and print time and memory.

    python docs/research/measure_large.py --size 31623x1200 --format tif --format jpg

Each format runs in a process of its own. What is held in memory depends on the width, and on the
keypoints, of which there are at most 500 for each megapixel: 576 bytes each.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from matchserve.large import describe_large
from matchserve.libraries import import_pyvips
from matchserve.matcher import Matcher, Options
from matchserve.pattern import generate


def draw(path: Path, size: tuple[int, int]) -> None:
    """Write a wall of textures; a TIFF is tiled, without compression."""
    tiles = [generate((800, 800), seed=seed) for seed in range(16)]
    across, down = (-(-side // 800) for side in size)
    rows = [np.hstack([tiles[(x * 7 + y * 3) % 16] for x in range(across)]) for y in range(down)]
    wall = np.ascontiguousarray(np.vstack(rows)[: size[1], : size[0]])
    image = import_pyvips().Image.new_from_array(wall)
    image.write_to_file(str(path), **({"tile": True} if path.suffix == ".tif" else {"Q": 95}))


def describe(path: Path) -> None:
    """Describe one image, and print its figures."""
    matcher = Matcher(threads=1)
    start = time.process_time()
    features = describe_large(matcher, path, Options())
    # ru_maxrss would be that of the process that drew the image, if it is larger.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) * 1.024e-3
    width, height = features.size
    print(  # noqa: T201
        f"| {path.suffix[1:]} | {width} x {height} | {len(features)} | "
        f"{time.process_time() - start:.0f} | {peak:.0f} |"
    )


def main() -> None:
    """Draw the images and describe each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="31623x1200")
    parser.add_argument("--format", action="append", choices=("tif", "jpg"))
    parser.add_argument("--one", type=Path)
    arguments = parser.parse_args()
    if arguments.one is not None:
        describe(arguments.one)
        return
    width, height = (int(side) for side in arguments.size.split("x"))
    print("| format | pixels | keypoints | CPU s | peak MB |\n|---|---|---|---|---|", flush=True)  # noqa: T201
    with tempfile.TemporaryDirectory() as scratch:
        for suffix in arguments.format or ["tif", "jpg"]:
            path = Path(scratch) / f"wall.{suffix}"
            draw(path, (width, height))
            command = [sys.executable, __file__, "--one", str(path)]
            subprocess.run(command, check=True)  # noqa: S603


if __name__ == "__main__":
    main()
