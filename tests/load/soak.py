"""L-5: requests at a steady rate for a long time; memory, files, threads and times must not grow.

Memory is compared in pauses, after the service has returned what it keeps while it is busy: it is
then the same within a megabyte, while requests that overlap take hundreds. And it is counted for
each request: on a busy machine there are few of them.

Times are also those of other work on the machine. A process beside the requests therefore times the
same calculation again and again, and durations are compared only between periods in which it was
not slowed down. The processor time of a request is compared whatever else runs.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import httpx
import numpy as np
import psutil

from matchserve.api.app import IDLE_S
from tests.load.driver import lone_median_s, pairs
from tests.server_process import ServerProcess

LOAD_SHARE = 0.7
"""Share of the capacity of one core at which requests are sent."""
WARM_SHARE = 0.25
"""Share of the samples that is left out: caches and heaps fill at first."""
PAUSES = 12
"""Number of pauses in which memory is compared."""
PAUSE_S = IDLE_S + 2
MAX_LEAK_KB = 5.0
"""Maximum memory that remains of each request, in kilobytes."""
MAX_MORE_FILES = 2
SAMPLE_S = 0.5
PERIODS = 12
"""Number of periods of equal duration, without the warm-up, in which times are summarised."""
ENDS = 4
"""Number of periods at each end that are compared."""
MIN_QUIET = 2
"""Fewest quiet periods at each end; with fewer, the drift of durations is not known."""
MAX_SLOWDOWN = 1.3
"""Largest duration of the reference calculation in a quiet period, relative to the best period."""

_REFERENCE = """
import json, select, sys, time
seen = []
while not select.select([sys.stdin], [], [], 0.5)[0]:
    start = time.monotonic()
    sum(range(1_000_000))
    seen.append((start, time.monotonic() - start))
print(json.dumps(seen))
"""


@dataclass
class Soak:
    """What was seen: samples in time, and the durations and statuses of the requests."""

    at_s: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    idle: list[tuple[int, float]] = field(default_factory=list)
    """Number of requests before each pause, and the memory in it, in MB."""
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    requests: list[tuple[float, float]] = field(default_factory=list)
    """Time of the start and duration of each request, in seconds."""
    reference: list[tuple[float, float]] = field(default_factory=list)
    """The same of a calculation that does not depend on the service."""
    cpu_s: list[float] = field(default_factory=list)
    """Processor time of the service so far, at each sample."""

    def problems(self) -> list[str]:
        """List what grew; an empty list means that nothing leaks."""
        leak, error = self.leak_kb()
        found = []
        # On a short run it is uncertain: only a certain one is a leak.
        if leak - 3 * error > MAX_LEAK_KB:
            found.append(f"memory grows by {leak:.1f} ± {error:.1f} kB a request")
        first = int(WARM_SHARE * len(self.at_s))
        for name in ("files", "threads"):
            values = np.array(getattr(self, name)[first:])
            more = np.median(values[-10:]) - np.median(values[:10])
            if abs(more) > MAX_MORE_FILES:
                found.append(f"{name}: {more:+.0f}")
        return found

    def leak_kb(self) -> tuple[float, float]:
        """Return the memory that remains of each request, in kilobytes, and its standard error."""
        kept = np.array(self.idle[int(WARM_SHARE * len(self.idle)) :])
        slope, error = _slope(kept[:, 0], kept[:, 1])
        return 1e3 * slope, 1e3 * error

    def drift(self) -> float | None:
        """Return the 99th percentile of the durations at the end, relative to the beginning.

        Medians of quiet periods are compared; None means that other work left too few of them.
        """
        edges = self._edges()
        reference = [np.median(part) if len(part) else np.inf for part in
                     _by_period(self.reference, edges)]  # fmt: skip
        is_quiet = np.array(reference) <= MAX_SLOWDOWN * min(reference)
        p99 = [np.percentile(part, 99) if len(part) else np.nan for part in
               _by_period(self.requests, edges)]  # fmt: skip
        usable = np.where(is_quiet, p99, np.nan)
        first, last = usable[:ENDS], usable[-ENDS:]
        if min(np.isfinite(first).sum(), np.isfinite(last).sum()) < MIN_QUIET:
            return None
        return float(np.nanmedian(last) / np.nanmedian(first))

    def cpu_drift(self) -> float:
        """Return the processor time of a request at the end, relative to the beginning."""
        edges = self._edges()
        spent = np.diff(np.interp(edges, self.at_s, self.cpu_s))
        # A request counts where it ends: under load it may have waited before.
        ended = [(start + duration, duration) for start, duration in self.requests]
        cost = spent / np.maximum(1, [len(part) for part in _by_period(ended, edges)])
        return float(np.median(cost[-ENDS:]) / np.median(cost[:ENDS]))

    def _edges(self) -> np.ndarray:
        end = self.at_s[-1]
        return np.linspace(WARM_SHARE * end, end, PERIODS + 1)


def _by_period(timed: list[tuple[float, float]], edges: np.ndarray) -> list[np.ndarray]:
    """Return the durations in each period, by the times in front of them."""
    at, durations = np.array(timed).reshape(-1, 2).T
    period = np.searchsorted(edges, at, side="right") - 1
    return [durations[period == number] for number in range(len(edges) - 1)]


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the slope of a line through the points, and its standard error."""
    spread = ((x - x.mean()) ** 2).sum()
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
    rest = y - y.mean() - slope * (x - x.mean())
    return slope, float(np.sqrt((rest**2).sum() / (len(x) - 2) / spread))


def run(server: ServerProcess, seconds: float, size: tuple[int, int] = (320, 240)) -> Soak:
    """Send requests at a steady rate, whether or not earlier ones have ended, with pauses."""
    stock = pairs(size)
    lone_median_s(server.url, stock, 5)
    interval_s = lone_median_s(server.url, stock, 15) / LOAD_SHARE
    bodies = list(itertools.islice(stock, 200))
    soak = Soak()
    stop = threading.Event()
    reference = subprocess.Popen(
        [sys.executable, "-c", _REFERENCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    begin = time.monotonic()
    sampler = threading.Thread(target=_sample, args=(server, soak, stop, begin))
    sampler.start()
    numbers = itertools.count()
    with httpx.Client(base_url=server.url, timeout=60) as client, ThreadPoolExecutor(16) as pool:
        for _ in range(PAUSES):
            sent: list[Future[None]] = []
            start = time.monotonic()
            while (due := start + len(sent) * interval_s) < start + seconds / PAUSES:
                time.sleep(max(0.0, due - time.monotonic()))
                images = bodies[next(numbers) % len(bodies)]
                sent.append(pool.submit(_request, client, images, soak, begin))
            wait(sent)
            time.sleep(PAUSE_S)
            soak.idle.append((len(soak.statuses), server.rss() / 1e6))
    stop.set()
    sampler.join()
    output, _ = reference.communicate(b"\n")
    soak.reference = [(at - begin, duration) for at, duration in json.loads(output)]
    return soak


def _request(client: httpx.Client, images: dict[str, bytes], soak: Soak, begin: float) -> None:
    start = time.monotonic()
    status = client.post("/v1/match", files=images).status_code
    soak.requests.append((start - begin, time.monotonic() - start))
    soak.statuses.append(status)


def _sample(server: ServerProcess, soak: Soak, stop: threading.Event, begin: float) -> None:
    process = psutil.Process(server.process.pid)
    while not stop.wait(SAMPLE_S):
        soak.at_s.append(time.monotonic() - begin)
        soak.rss_mb.append(server.rss() / 1e6)
        soak.files.append(process.num_fds())
        soak.threads.append(process.num_threads())
        soak.cpu_s.append(server.cpu_s())
