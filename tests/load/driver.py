"""Closed-loop clients that each send one request after another, and what they saw."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import cv2
import httpx
import numpy as np
from PIL import Image as Pillow

from matchserve.pattern import generate_pair


@dataclass
class Seen:
    """Statuses and times of one run."""

    statuses: Counter[int] = field(default_factory=Counter)
    ok_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)
    retry_after: set[int] = field(default_factory=set)
    broken: int = 0
    seconds: float = 0.0

    @property
    def goodput(self) -> float:
        """Good answers a second."""
        return len(self.ok_s) / self.seconds

    def counts(self) -> str:
        """How often each status was seen, and how many connections broke."""
        seen = ", ".join(f"{n} x {status}" for status, n in sorted(self.statuses.items()))
        return f"{seen}, {self.broken} broken" if self.broken else seen

    def p(self, percent: float, of: str = "ok_s") -> float:
        values = getattr(self, of)
        return float(np.percentile(values, percent)) if values else float("nan")


def pairs(size: tuple[int, int] = (640, 480), scenes: int = 4) -> Iterator[dict[str, bytes]]:
    """Endless pairs, no two equal: a cache must not make the figures better than they are."""
    bases = [generate_pair(size, seed=seed)[:2] for seed in range(scenes)]
    number = 0
    while True:
        left, right = bases[number % scenes]
        number += 1
        stamp = np.full((4, 4), number % 251, np.uint8)
        images = {}
        for name, base in (("image0", left), ("image1", right)):
            picture = base.copy()
            picture[:4, :4] = stamp
            picture[-4:, :4] = (number // 251) % 251
            buffer = io.BytesIO()
            Pillow.fromarray(cv2.cvtColor(picture, cv2.COLOR_GRAY2RGB)).save(
                buffer, "JPEG", quality=90
            )
            images[name] = buffer.getvalue()
        yield images


def lone_median_s(url: str, stock: Iterator[dict[str, bytes]], count: int = 50) -> float:
    """L1: the median of requests sent one after another to an idle service."""
    times = []
    with httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(count):
            images = next(stock)
            start = time.perf_counter()
            answer = client.post("/v1/match", files=images)
            times.append(time.perf_counter() - start)
            assert answer.status_code == 200
    return float(np.median(times))


def encoded_request(images: dict[str, bytes]) -> bytes:
    """A request made once, so that the driver takes little of the machine it measures."""
    request = httpx.Request("POST", "http://x/v1/match", files=images)
    body = request.read()
    lines = ["POST /v1/match HTTP/1.1", *(f"{k}: {v}" for k, v in request.headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


Stock = list[bytes]


class Connection:
    """One client's connection, kept open from request to request.

    A client library costs more than the service's own part of a refusal, and makes a TLS context
    for each client: with 64 of them the driver would stand still for seconds, and measure that.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, dict[str, str]]:
        """Send a request and read its answer: the status and the headers.

        Raises:
            OSError, asyncio.IncompleteReadError: the service broke the connection.
        """
        try:
            self._streams = self._streams or await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            await reader.readexactly(int(headers["content-length"]))
            await writer.drain()
        except BaseException:
            self.close()
            raise
        if headers.get("connection") == "close":
            self.close()
        return int(head[0].split()[1]), headers

    def close(self) -> None:
        """Hang up; the next request connects anew."""
        if self._streams:
            self._streams[1].close()
        self._streams = None


async def _client(port: int, stock: Stock, end: float, seen: Seen) -> None:
    connection = Connection(port)
    turn = 0
    while time.perf_counter() < end:
        request = stock[turn % len(stock)]
        turn += 1
        start = time.perf_counter()
        try:
            status, headers = await asyncio.wait_for(connection.ask(request), 60)
        except (OSError, asyncio.IncompleteReadError):
            seen.broken += 1
            continue
        seconds = time.perf_counter() - start
        seen.statuses[status] += 1
        if status == 200:
            seen.ok_s.append(seconds)
        else:
            seen.refused_s.append(seconds)
            seen.retry_after.add(int(headers.get("retry-after", "0")))
            # The least that Retry-After ever asks for: an impatient client, not a spin.
            await asyncio.sleep(1.0)
    connection.close()


_HEALTH = """
import http.client, json, sys, time
host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
connection = http.client.HTTPConnection(host, port, timeout=60)
times, end = [], time.perf_counter() + seconds
while time.perf_counter() < end:
    start = time.perf_counter()
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    times.append(time.perf_counter() - start)
    time.sleep(0.05)
print(json.dumps(times))
"""


def _watch_health(port: int, seconds: float) -> subprocess.Popen[bytes]:
    """A process of its own: what it sees is the service's delay and not the driver's."""
    command = [sys.executable, "-c", _HEALTH, "127.0.0.1", str(port), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


async def _all(port: int, stocks: list[Stock], end: float, seen: Seen) -> None:
    await asyncio.gather(*(_client(port, stock, end, seen) for stock in stocks))


def closed_loop(url: str, seconds: float, stocks: list[Stock]) -> Seen:
    """One client for each stock, for `seconds`; health is asked meanwhile."""
    seen = Seen()
    port = int(url.rpartition(":")[2])
    health = _watch_health(port, seconds)
    start = time.perf_counter()
    asyncio.run(_all(port, stocks, start + seconds, seen))
    seen.seconds = time.perf_counter() - start
    seen.health_s = json.loads(health.communicate()[0])
    return seen
