"""L-5: requests at a steady rate for a long time; memory, files and threads must not grow."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
import numpy as np
import psutil

from tests.load.driver import lone_median_s, pairs
from tests.server_process import ServerProcess

LOAD_SHARE = 0.7
"""Share of the capacity of one core at which requests are sent."""
WARM_SHARE = 0.25
"""Share of the samples that is left out: caches and heaps fill at first."""
MAX_SLOPE_MB_PER_MIN = 0.5
MAX_GROWTH_MB = 40.0
MAX_MORE_FILES = 2
SAMPLE_S = 0.5


@dataclass
class Soak:
    """What was seen: samples in time, and the durations and statuses of the requests."""

    at_s: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)

    def problems(self) -> list[str]:
        """List what grew; an empty list means that nothing leaks."""
        first = int(WARM_SHARE * len(self.at_s))
        minutes, memory = np.array(self.at_s[first:]) / 60, np.array(self.rss_mb[first:])
        slope, error = _slope(minutes, memory)
        found = []
        # On a short run the slope is uncertain: only a certain one is a leak.
        if slope - 3 * error > MAX_SLOPE_MB_PER_MIN:
            found.append(f"memory grows by {slope:.2f} ± {error:.2f} MB a minute")
        if np.median(memory[-10:]) - np.median(memory[:10]) > MAX_GROWTH_MB:
            found.append(f"memory grew by {memory[-1] - memory[0]:.0f} MB")
        for name in ("files", "threads"):
            values = np.array(getattr(self, name)[first:])
            more = np.median(values[-10:]) - np.median(values[:10])
            if abs(more) > MAX_MORE_FILES:
                found.append(f"{name}: {more:+.0f}")
        return found

    def drift(self) -> float:
        """Return the 99th percentile of the last tenth of the requests, relative to the first."""
        tenth = max(1, len(self.durations_s) // 10)
        first, last = self.durations_s[:tenth], self.durations_s[-tenth:]
        return float(np.percentile(last, 99) / np.percentile(first, 99))


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the slope of the medians of twelve periods, and its standard error."""
    periods = [p for p in np.array_split(np.arange(len(x)), 12) if len(p)]
    x = np.array([x[p].mean() for p in periods])
    y = np.array([np.median(y[p]) for p in periods])
    spread = ((x - x.mean()) ** 2).sum()
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
    rest = y - y.mean() - slope * (x - x.mean())
    return slope, float(np.sqrt((rest**2).sum() / (len(x) - 2) / spread))


def run(server: ServerProcess, seconds: float, size: tuple[int, int] = (320, 240)) -> Soak:
    """Send requests at a steady rate, whether or not earlier ones have ended."""
    stock = pairs(size)
    lone_median_s(server.url, stock, 5)
    interval_s = lone_median_s(server.url, stock, 15) / LOAD_SHARE
    bodies = list(itertools.islice(stock, 200))
    soak = Soak()
    stop = threading.Event()
    sampler = threading.Thread(target=_sample, args=(server, soak, stop))
    sampler.start()
    with httpx.Client(base_url=server.url, timeout=60) as client, ThreadPoolExecutor(16) as pool:
        start = time.monotonic()
        for number in itertools.count():
            due = start + number * interval_s
            if due > start + seconds:
                break
            time.sleep(max(0.0, due - time.monotonic()))
            pool.submit(_request, client, bodies[number % len(bodies)], soak)
    stop.set()
    sampler.join()
    return soak


def _request(client: httpx.Client, images: dict[str, bytes], soak: Soak) -> None:
    start = time.monotonic()
    status = client.post("/v1/match", files=images).status_code
    soak.durations_s.append(time.monotonic() - start)
    soak.statuses.append(status)


def _sample(server: ServerProcess, soak: Soak, stop: threading.Event) -> None:
    process = psutil.Process(server.process.pid)
    start = time.monotonic()
    while not stop.wait(SAMPLE_S):
        soak.at_s.append(time.monotonic() - start)
        soak.rss_mb.append(server.rss() / 1e6)
        soak.files.append(process.num_fds())
        soak.threads.append(process.num_threads())
