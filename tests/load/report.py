"""`python -m tests.load.report`: the load figures of this machine, in one run.

All figures are multiples of L1, the median of lone requests in the same run. A lone request may
use every core, so many requests at once cannot each be as fast: the multiples are asked of a
service whose requests each keep to one core (`MATCHSERVE_LONE_REQUEST_THREADS=1`), and the
service as it is by default must do at least 0.95 / L1.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from matchserve.hardware import available_cpus
from matchserve.models.registry import DEFAULT_MODEL
from tests.load.driver import Seen, closed_loop, encoded_request, lone_median_s, pairs
from tests.server_process import ServerProcess, running_server


@dataclass
class Figures:
    """One service under load."""

    lone_s: float
    eight: Seen
    many: Seen
    recovery_s: float
    recovered_lone_s: float
    rss_eight: int
    rss_many: int
    rss_after: int
    cpu_lone_s: float
    cpu_eight_s: float
    cpu_many_s: float

    @property
    def cpu_capacity(self) -> float:
        """Throughput in 1 / L1 that the processor time of an answer allows on these cores.

        Where other work takes the cores, wall-clock figures are theirs too; this one is not.
        """
        return available_cpus() * self.cpu_lone_s / self.cpu_eight_s

    def lines(self) -> list[str]:
        l1, eight, many = self.lone_s, self.eight, self.many
        return [
            f"L1 {1e3 * l1:.0f} ms",
            f"8 clients: {dict(eight.statuses)} broken {eight.broken}, "
            f"p50 {eight.p(50) / l1:.2f} L1, p99 {eight.p(99) / l1:.2f} L1, "
            f"throughput {eight.goodput * l1:.2f} / L1",
            f"64 clients: {dict(many.statuses)} broken {many.broken}, "
            f"accepted p99 {many.p(99) / l1:.2f} L1, goodput {many.goodput / eight.goodput:.2f} "
            f"of 8 clients', 429 p99 {1e3 * many.p(99, 'refused_s'):.0f} ms, "
            f"Retry-After {sorted(many.retry_after)}, "
            f"healthz p99 {1e3 * many.p(99, 'health_s'):.0f} ms",
            f"recovery: {self.recovery_s:.1f} s, then a lone request "
            f"{self.recovered_lone_s / l1:.2f} L1",
            f"memory: {self.rss_eight / 1e6:.0f} MB with 8, {self.rss_many / 1e6:.0f} MB with 64, "
            f"{self.rss_after / 1e6:.0f} MB after",
            f"processor time of an answer: lone {1e3 * self.cpu_lone_s:.0f} ms, with 8 "
            f"{1e3 * self.cpu_eight_s:.0f} ms, with 64 {1e3 * self.cpu_many_s:.0f} ms; "
            f"allows {self.cpu_capacity:.2f} / L1",
        ]


def measure(server: ServerProcess, seconds: float, lone_requests: int = 50) -> Figures:
    """Lone requests, 8 clients, 64 clients, and how fast it recovers."""
    stock = pairs()
    lone_median_s(server.url, stock, 10)  # warm
    cpu = [server.cpu_s()]
    lone_s = lone_median_s(server.url, stock, lone_requests)
    cpu.append(server.cpu_s())
    stocks = [[encoded_request(i) for i in itertools.islice(stock, 6)] for _ in range(64)]
    eight = closed_loop(server.url, seconds, stocks[:8])
    rss_eight = server.rss()
    cpu.append(server.cpu_s())
    many = closed_loop(server.url, seconds, stocks)
    rss_many = server.rss()
    cpu.append(server.cpu_s())
    start = time.perf_counter()
    lone_median_s(server.url, stock, 1)
    recovery_s = time.perf_counter() - start
    recovered = lone_median_s(server.url, stock, 11)
    return Figures(
        lone_s,
        eight,
        many,
        recovery_s,
        recovered,
        rss_eight,
        rss_many,
        server.rss(),
        cpu_lone_s=(cpu[1] - cpu[0]) / lone_requests,
        cpu_eight_s=(cpu[2] - cpu[1]) / max(1, len(eight.ok_s)),
        cpu_many_s=(cpu[3] - cpu[2]) / max(1, len(many.ok_s)),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    chosen = parser.parse_args()
    for title, settings in (
        ("one core for each request", {"lone_request_threads": 1}),
        ("as by default: every core for a lone request", {}),
    ):
        with (
            tempfile.TemporaryDirectory() as folder,
            running_server(
                Path(folder), cache_bytes=0, default_model=chosen.model, **settings
            ) as server,
        ):
            lines = measure(server, chosen.seconds).lines()
        sys.stdout.write("\n".join([title, *(f"  {line}" for line in lines), ""]))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
