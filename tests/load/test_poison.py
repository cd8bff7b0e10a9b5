"""L-4: a quarter of malformed requests does not slow the good ones, and each gets its 4xx."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.load.driver import Seen, closed_loop, encoded_request, pairs
from tests.patience import is_exact
from tests.security import corpus
from tests.security import hostile_images as hostile
from tests.server_process import ServerProcess, running_server

CLIENTS = 8
SECONDS = 20.0
MAX_RATIO, MAX_RATIO_BUSY = 1.3, 2.0

BAD: dict[str, tuple[bytes, int]] = {
    "text": (b"not an image", 415),
    "cut": (corpus.plain_jpeg()[:500], 422),
    "bomb": (hostile.bomb(9400, 9400), 413),
    "scans": (corpus.scans_jpeg(), 413),
    "empty": (b"", 422),
    "chunks": (corpus.chunks_png(200_000), 422),
}


class Poison:
    """Clients that send malformed requests, a third as many as there are good ones."""

    def __init__(self, server: ServerProcess, good: bytes) -> None:
        self._server, self._good = server, good
        self._stop = threading.Event()
        self.wrong: list[tuple[str, int]] = []
        self.sent = 0

    def _run(self, names: Iterator[str]) -> None:
        with httpx.Client(base_url=self._server.url, timeout=60) as client:
            while not self._stop.wait(0.2):
                name = next(names)
                data, status = BAD[name]
                files = {"image0": data, "image1": self._good}
                seen = client.post("/v1/match", files=files).status_code
                self.sent += 1
                if seen not in (status, 429):
                    self.wrong.append((name, seen))

    def __enter__(self) -> Poison:
        self._thread = threading.Thread(target=self._run, args=(itertools.cycle(BAD),))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.slow
def test_malformed_requests_do_not_slow_good_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stock = pairs((320, 240))
    stocks = [[encoded_request(i) for i in itertools.islice(stock, 4)] for _ in range(CLIENTS)]
    quiet, poisoned = Seen(), Seen()
    with running_server(tmp_path, cache_bytes=0) as server:
        closed_loop(server.url, 3, stocks)
        poison = Poison(server, next(stock)["image0"])
        for _ in range(2):  # in turns: other work on the machine comes and goes
            add(quiet, closed_loop(server.url, SECONDS / 2, stocks))
            with poison:
                poison._stop.clear()
                add(poisoned, closed_loop(server.url, SECONDS / 2, stocks))
        assert "Traceback" not in server.log()
    ratio = poisoned.p(99) / quiet.p(99)
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{len(quiet.ok_s)} good requests alone, {len(poisoned.ok_s)} beside {poison.sent} "
            f"malformed ones: p99 {ratio:.2f}"
        )
    assert set(quiet.statuses) == {200}
    assert set(poisoned.statuses) <= {200, 429}
    assert poisoned.statuses[200] >= 0.9 * sum(poisoned.statuses.values())
    assert not poison.wrong
    assert poison.sent >= 10
    assert ratio <= (MAX_RATIO if is_exact() else MAX_RATIO_BUSY)


def add(total: Seen, part: Seen) -> None:
    total.statuses.update(part.statuses)
    total.ok_s += part.ok_s
