"""`python -m tests.load.jobs`: the load that requests see while a job runs, against without one.

Phases without and with a job follow each other on one service, so that other work of the machine
weighs on both alike.
"""

from __future__ import annotations

import argparse
import io
import itertools
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image as Pillow

from matchserve.client import Client, ClientJob
from matchserve.client_jobs import FINISHED
from matchserve.pattern import generate
from tests.load.driver import Seen, Stock, closed_loop, encoded_request, pairs
from tests.server_process import ServerProcess, running_server

MIN_THROUGHPUT, MAX_P99 = 0.9, 1.2
"""Bars of L-9: throughput, and 99th percentile, with a job in multiples of those without."""

IMAGES = 60
_COLLECTION = "load"
_GUARD_S = 300.0


@dataclass
class Phases:
    """What clients saw in the phases of one kind, without and with a job."""

    clients: int
    without: list[Seen] = field(default_factory=list)
    with_job: list[Seen] = field(default_factory=list)

    @property
    def throughput(self) -> float:
        """Good answers a second with a job, over those without."""
        return _goodput(self.with_job) / _goodput(self.without)

    @property
    def p99(self) -> float:
        """99th percentile of the seconds of good answers with a job, over that without."""
        return _joined(self.with_job).p(99) / _joined(self.without).p(99)

    def __str__(self) -> str:
        rates = f"{_goodput(self.without):.2f} and {_goodput(self.with_job):.2f} answers/s"
        return (
            f"{self.clients} clients, {rates}: throughput {self.throughput:.3f} "
            f"(bar {MIN_THROUGHPUT}), p99 {self.p99:.3f} (bar {MAX_P99})"
        )


def measure(server: ServerProcess, folder: Path, seconds: float, rounds: int) -> list[Phases]:
    """Return the figures of 8 and of 64 clients (L-1 and L-2)."""
    draw_photos(folder, IMAGES)
    stock = pairs()
    stocks: list[Stock] = [
        [encoded_request(images) for images in itertools.islice(stock, 6)] for _ in range(64)
    ]
    phases = [Phases(8), Phases(64)]
    with Client(server.url, timeout_s=_GUARD_S) as client:
        client.upload(_COLLECTION, folder)
        closed_loop(server.url, 2.0, stocks[:8])  # warm
        for number in range(rounds):
            for phase in phases:
                used = stocks[: phase.clients]
                phase.without.append(closed_loop(server.url, seconds, used))
                # Another number of keypoints, so that the job finds nothing done.
                job = _running(client, 1500 + 10 * number + phase.clients)
                phase.with_job.append(closed_loop(server.url, seconds, used))
                if job.refresh().state != "running":
                    sys.exit(f"the job is {job.state} before the load ends: it is too small")
                _cancel(job)
    return phases


def draw_photos(folder: Path, count: int) -> None:
    """Draw unrelated pictures."""
    for number in range(count):
        buffer = io.BytesIO()
        Pillow.fromarray(generate((640, 480), seed=number)).save(buffer, "PNG")
        (folder / f"{number:03d}.png").write_bytes(buffer.getvalue())


def _running(client: Client, keypoints: int) -> ClientJob:
    """Start a job, and return it when it has made its first step."""
    job = client.submit("match_collection", collection=_COLLECTION, max_keypoints=keypoints)
    end = time.monotonic() + _GUARD_S
    while job.refresh().state != "running" or not (job.fields["progress"] or {}).get("done"):
        if time.monotonic() > end or job.state in FINISHED:
            sys.exit(f"the job is {job.state} and has made no step")
        time.sleep(0.1)
    return job


def _cancel(job: ClientJob) -> None:
    job.cancel()
    while job.refresh().state not in FINISHED:
        time.sleep(0.1)


def _joined(runs: list[Seen]) -> Seen:
    return Seen(ok_s=[seconds for seen in runs for seconds in seen.ok_s])


def _goodput(runs: list[Seen]) -> float:
    return sum(len(seen.ok_s) for seen in runs) / sum(seen.seconds for seen in runs)


def main() -> None:
    """Print the figures; end with an error if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "photos").mkdir()
        settings = {"cache_bytes": 0, "data_dir": folder / "data"}
        with running_server(folder, **settings) as server:
            figures = measure(server, folder / "photos", arguments.seconds, arguments.rounds)
    for phases in figures:
        print(phases)  # noqa: T201
    if any(p.throughput < MIN_THROUGHPUT or p.p99 > MAX_P99 for p in figures):
        sys.exit(1)


if __name__ == "__main__":
    main()
