"""No body of at most 42 MB stops the event loop or takes much memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.security.corpus import FORM, Body, all_bodies, form
from tests.security.watch import Watch
from tests.server_process import ServerProcess, running_server

MAX_BLOCKED_S = 0.1
# On a machine that is busy with other work, every upload delays /healthz.
MAX_RATIO = 2.0
MAX_GROWTH = 300_000_000
# An accepted image takes the memory that admission has reserved for it, 50 megapixels at most.
MAX_IMAGE_GROWTH = 28 * 50_000_000 + MAX_GROWTH
ATTEMPTS = 3

FAST = {
    "empty lists, 8 MB",
    "lists in an unknown field",
    "archive of many members",
    "fill-4MB.jpg",
    "chunks.png",
    "scans.jpg",
}
BODIES = all_bodies()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("blocking")
    with running_server(folder, default_model="rootsift", cache_bytes=0) as server:
        yield server


@pytest.fixture(scope="module")
def ordinary_s(attacked: ServerProcess) -> float:
    """The delay of /healthz while two ordinary files of 20 MB are received."""
    content = form("image0", bytes(20_000_000), other=bytes(20_000_000))
    delays = []
    for _ in range(ATTEMPTS):
        with Watch(attacked) as seen:
            httpx.post(
                f"{attacked.url}/v1/match",
                content=content,
                headers={"Content-Type": FORM},
                timeout=120,
            )
        delays.append(seen.health_s)
    return sorted(delays)[1]


@pytest.mark.parametrize(
    "name",
    [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in BODIES],
)
def test_a_hostile_body_neither_blocks_nor_takes_memory(
    attacked: ServerProcess, ordinary_s: float, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body: Body = BODIES[name]
    content = body.make()
    assert len(content) <= 42_000_000
    headers = {"Content-Type": body.content_type}
    max_blocked_s = max(MAX_BLOCKED_S, MAX_RATIO * ordinary_s)
    # Other work on the machine delays answers too: the best of a few attempts counts.
    max_growth, watch = 0, Watch(attacked)
    for _ in range(ATTEMPTS):
        watch = Watch(attacked)
        with watch:
            answer = httpx.post(
                f"{attacked.url}{body.path}", content=content, headers=headers, timeout=120
            )
        assert answer.status_code < 500 or answer.status_code == 504, answer.text
        max_growth = MAX_IMAGE_GROWTH if answer.status_code == 200 else MAX_GROWTH
        with capsys.disabled():
            print(  # noqa: T201
                f"\n{name}: {len(content) / 1e6:.1f} MB, {answer.status_code}, /healthz "
                f"{1e3 * watch.health_s:.0f} ms, memory +{watch.growth_bytes / 1e6:.0f} MB"
            )
        if watch.health_s <= max_blocked_s and watch.growth_bytes <= max_growth:
            return
    assert watch.growth_bytes <= max_growth
    assert watch.health_s <= max_blocked_s, f"an ordinary upload: {ordinary_s:.3f} s"
