"""`python -m tests.load.report`: the load figures of this machine, in one run.

All figures are multiples of L1, the median of lone requests in the same run. On two cores the
bars in L1 can only be met by a service whose lone requests keep to one core
(`MATCHSERVE_LONE_REQUEST_THREADS=1`): two cores that do a request in C seconds of processor time
each do 2 / C of them a second, which is at most 2 / L1 when L1 = C, and 1 / L1 when a lone request
has both cores and L1 = C / 2. Under load both kinds of service do the same work in the same way, so
the second one is also measured against L1 of the first.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from matchserve import defaults
from matchserve.api.app import IDLE_S
from matchserve.hardware import available_cpus
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
    rss_before: int
    rss_eight: int
    rss_many: int
    rss_after: int
    cpu_lone_s: float
    cpu_eight_s: float
    cpu_many_s: float

    def capacity(self, lone_s: float) -> float:
        """Throughput in 1 / `lone_s` that the processor time of an answer allows on these cores."""
        return available_cpus() * lone_s / self.cpu_eight_s

    @property
    def cpu_capacity(self) -> float:
        """The same with the processor time of a lone request for its duration.

        Where other work takes the cores, wall-clock figures are theirs too; this one is not.
        """
        return self.capacity(self.cpu_lone_s)

    def lines(self, one_core_s: float | None = None) -> list[Line]:
        """Every figure with its bar; `one_core_s` is L1 of requests that keep to one core."""
        l1, eight, many = self.lone_s, self.eight, self.many
        core = one_core_s or l1
        only = set(many.statuses) <= {200, 429} and not many.broken
        return [
            Line("L1, a lone request", "", f"{1e3 * l1:.0f} ms"),
            Line("8 clients: answers", "only 200", eight.counts(), set(eight.statuses) == {200}),
            Line("p50", "", f"{eight.p(50) / l1:.2f} L1"),
            Line("p99", "<= 6 L1", f"{eight.p(99) / l1:.2f} L1", eight.p(99) <= 6 * l1),
            Line("throughput", ">= 1.6 / L1", f"{eight.goodput * l1:.2f} / L1",
                 eight.goodput * l1 >= 1.6),
            Line("p99 against L1 on one core", "<= 6 L1", f"{eight.p(99) / core:.2f} L1",
                 eight.p(99) <= 6 * core),
            Line("throughput against L1 on one core", ">= 1.6 / L1",
                 f"{eight.goodput * core:.2f} / L1", eight.goodput * core >= 1.6),
            Line("64 clients: answers", "only 200, 429", many.counts(), only),
            Line("goodput", ">= 0.9 of 8", f"{many.goodput / eight.goodput:.2f} of 8",
                 many.goodput >= 0.9 * eight.goodput),
            Line("p99 of those accepted", "", f"{many.p(99) / l1:.2f} L1"),
            Line("p99 of those refused", "<= 100 ms", f"{1e3 * many.p(99, 'refused_s'):.0f} ms",
                 many.p(99, "refused_s") <= 0.1),
            Line("p99 of /healthz", "<= 50 ms", f"{1e3 * many.p(99, 'health_s'):.0f} ms",
                 many.p(99, "health_s") <= 0.05),
            Line("recovery: first answer", "<= 3 s", f"{self.recovery_s:.1f} s",
                 self.recovery_s <= 3),
            Line("lone requests afterwards", "<= 1.2 L1", f"{self.recovered_lone_s / l1:.2f} L1",
                 self.recovered_lone_s <= 1.2 * l1),
            Line("memory: idle, with 8, with 64", "",
                 ", ".join(f"{rss / 1e6:.0f}" for rss in
                           (self.rss_before, self.rss_eight, self.rss_many)) + " MB"),
            Line("memory when idle again", "<= 1.15", f"{self.rss_after / self.rss_before:.2f}",
                 self.rss_after <= 1.15 * self.rss_before),
            Line("processor time: lone, 8, 64", "",
                 ", ".join(f"{1e3 * s:.0f}" for s in
                           (self.cpu_lone_s, self.cpu_eight_s, self.cpu_many_s)) + " ms"),
            Line("which allows, with 8", "", f"{self.capacity(core):.2f} / L1 on one core"),
        ]  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A figure, the bar it is measured against, and whether it meets it."""

    name: str
    bar: str
    value: str
    is_met: bool | None = None

    def __str__(self) -> str:
        verdict = {True: "met", False: "NOT MET", None: ""}[self.is_met]
        return f"{self.name:<34} {self.bar:<14} {self.value:<28} {verdict}".rstrip()


def measure(server: ServerProcess, seconds: float, lone_requests: int = 50) -> Figures:
    """Lone requests, 8 clients, 64 clients, and how fast it recovers."""
    stock = pairs()
    lone_median_s(server.url, stock, 10)  # warm
    cpu = [server.cpu_s()]
    lone_s = lone_median_s(server.url, stock, lone_requests)
    cpu.append(server.cpu_s())
    rss_before = _idle_rss(server)
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
        rss_before,
        rss_eight,
        rss_many,
        _idle_rss(server),
        cpu_lone_s=(cpu[1] - cpu[0]) / lone_requests,
        cpu_eight_s=(cpu[2] - cpu[1]) / max(1, len(eight.ok_s)),
        cpu_many_s=(cpu[3] - cpu[2]) / max(1, len(many.ok_s)),
    )


def _idle_rss(server: ServerProcess) -> int:
    """Memory once the service has returned what it keeps while it is busy."""
    time.sleep(IDLE_S + 2)
    return server.rss()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--lone", type=int, default=50, help="lone requests before the load")
    parser.add_argument("--model", default=defaults.MODEL)
    chosen = parser.parse_args()
    one_core_s: float | None = None
    for title, settings in (
        ("every request on one core (MATCHSERVE_LONE_REQUEST_THREADS=1)",
         {"lone_request_threads": 1}),
        ("every core for a lone request (the default)", {}),
    ):  # fmt: skip
        with (
            tempfile.TemporaryDirectory() as folder,
            running_server(
                Path(folder), cache_bytes=0, default_model=chosen.model, **settings
            ) as server,
        ):
            figures = measure(server, chosen.seconds, chosen.lone)
        one_core_s = one_core_s or figures.lone_s
        lines = [f"  {line}" for line in figures.lines(one_core_s)]
        sys.stdout.write("\n".join([title, *lines, "", ""]))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
