"""Match a generated collection with one worker and with two, and print how much faster two are.

    python docs/research/measure_workers.py --work /tmp/workers --views 120

`wall` compares the time on the clock, best of the rounds: it wants a machine with nothing else to
do. `processor` compares the processor time of the one process with that of the driver and the
busiest worker together, which is how long the run takes on cores of its own, start included.
"""

from __future__ import annotations

import argparse
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from measure_views import draw_views

from matchserve import Collection


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds on the clock, and processor seconds of the driver and of each worker."""

    wall_s: float
    driver_s: float
    workers_s: tuple[float, ...]

    @property
    def longest_s(self) -> float:
        """Processor time of the driver and the busiest worker."""
        return self.driver_s + max(self.workers_s, default=0.0)


def match(images: Path, output: Path, workers: int) -> Run:
    """Match all images with those after them."""
    shutil.rmtree(output, ignore_errors=True)
    own = psutil.Process()
    before, start = _cpu_s(own), time.perf_counter()
    children: dict[int, float] = {}
    for _ in Collection(output, images=images).match("sequential:20", workers=workers):
        for child in own.children():
            if "spawn_main" in " ".join(child.cmdline()):
                children[child.pid] = _cpu_s(child)
    wall_s = time.perf_counter() - start
    return Run(wall_s, _cpu_s(own) - before, tuple(children.values()))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Draw the views, match them in turn with one and two workers, and print both ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--views", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    images = arguments.work / "images"
    if not images.is_dir():
        draw_views(images, arguments.views)
    runs: dict[int, list[Run]] = {1: [], 2: []}
    for _ in range(arguments.rounds):
        for workers, done in runs.items():
            done.append(match(images, arguments.work / f"work{workers}", workers))
            print(workers, "worker(s):", done[-1], flush=True)  # noqa: T201
    wall = min(r.wall_s for r in runs[1]) / min(r.wall_s for r in runs[2])
    longest = min(r.longest_s for r in runs[1]) / min(r.longest_s for r in runs[2])
    print(f"two workers: wall {wall:.2f} x, processor {longest:.2f} x")  # noqa: T201


if __name__ == "__main__":
    main()
