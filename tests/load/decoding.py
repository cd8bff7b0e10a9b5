"""`python -m tests.load.decoding`: what decoding in a process of its own costs a lone request.

Two services run at the same time, one of which decodes in its own process. Each pair of images is
sent to both, one after the other, and first to one or to the other in turns. So other work of the
machine weighs on both alike, and the ratio of the two durations is one observation; the median of
the ratios counts. Minima do not: the minimum of a service is a single request that found the
machine idle, and which of the two services was so lucky is chance. Processor time hardly depends on
other work, so its ratio is the more certain figure on a busy machine.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

from matchserve.types import Float64
from tests.load.driver import pairs
from tests.server_process import ServerProcess, running_server

MAX_RATIO = 1.05
"""Bar of the median ratio."""

_WARM_UP = 5
_RESAMPLES = 2000


@dataclass
class Durations:
    """Durations of the same requests in both services, and their processor time, in seconds."""

    own_process: list[float] = field(default_factory=list)
    same_process: list[float] = field(default_factory=list)
    cpu_own_process: float = 0.0
    cpu_same_process: float = 0.0

    @property
    def ratios(self) -> Float64:
        """Duration with decoding in a process of its own, over that without, of each request."""
        return np.array(self.own_process, np.float64) / np.array(self.same_process, np.float64)

    def ratio(self) -> float:
        """Return the median ratio."""
        return float(np.median(self.ratios))

    @property
    def cpu_ratio(self) -> float:
        """Processor time with decoding in a process of its own, over that without."""
        return self.cpu_own_process / self.cpu_same_process

    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the median ratio, by bootstrap."""
        rng = np.random.default_rng(0)
        ratios = self.ratios
        draws = np.median(rng.choice(ratios, (_RESAMPLES, len(ratios))), axis=1)
        low, high = np.percentile(draws, [2.5, 97.5])
        return float(low), float(high)

    def of_minima(self) -> tuple[float, float, float]:
        """Return the ratio of the minima, and its 95 % interval by bootstrap."""
        rng = np.random.default_rng(0)
        both = np.array([self.own_process, self.same_process])
        rows = rng.integers(0, both.shape[1], (_RESAMPLES, both.shape[1]))
        low, high = np.percentile(np.divide(*both[:, rows].min(axis=2)), [2.5, 97.5])
        return float(np.divide(*both.min(axis=1))), float(low), float(high)

    def __str__(self) -> str:
        low, high = self.interval()
        minima, least, most = self.of_minima()
        own, same = 1e3 * np.median(self.own_process), 1e3 * np.median(self.same_process)
        count = len(self.own_process)
        return (
            f"{count} requests each: median ratio {self.ratio():.3f} ({low:.3f} to {high:.3f}), "
            f"bar {MAX_RATIO}; medians {own:.0f} and {same:.0f} ms; ratio of minima {minima:.3f} "
            f"({least:.3f} to {most:.3f}); processor time {1e3 * self.cpu_own_process / count:.0f} "
            f"and {1e3 * self.cpu_same_process / count:.0f} ms, ratio {self.cpu_ratio:.3f}"
        )


def measure(folder: Path, requests: int, size: tuple[int, int] = (640, 480)) -> Durations:
    """Send each request to both services in turns."""
    found = Durations()
    with (
        running_server(folder, cache_bytes=0) as own,
        running_server(folder, cache_bytes=0, module="tests.load.in_process_server") as same,
        httpx.Client(timeout=120) as client,
    ):
        stock = pairs(size)
        for images in itertools.islice(stock, _WARM_UP):
            _seconds(client, own, images)
            _seconds(client, same, images)
        before = _cpu_s(own), _cpu_s(same)
        for number, images in enumerate(itertools.islice(stock, requests)):
            if number % 2:
                found.own_process.append(_seconds(client, own, images))
                found.same_process.append(_seconds(client, same, images))
            else:
                found.same_process.append(_seconds(client, same, images))
                found.own_process.append(_seconds(client, own, images))
        found.cpu_own_process = _cpu_s(own) - before[0]
        found.cpu_same_process = _cpu_s(same) - before[1]
    return found


def _seconds(client: httpx.Client, server: ServerProcess, images: dict[str, bytes]) -> float:
    start = time.perf_counter()
    answer = client.post(f"{server.url}/v1/match", files=images)
    seconds = time.perf_counter() - start
    assert answer.status_code == 200
    return seconds


def _cpu_s(server: ServerProcess) -> float:
    """Return the processor time of a service and of its decoders."""
    return server.cpu_s(with_children=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=200)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), parser.parse_args().requests)
    sys.stdout.write(f"{found}\n")


if __name__ == "__main__":
    main()
