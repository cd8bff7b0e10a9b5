"""No body of at most 42 MB stops the event loop or takes much memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.patience import allowed_s, is_exact
from tests.security.corpus import FORM, Body, all_bodies, form, good_png
from tests.security.corpus_routes import COLLECTION, route_bodies
from tests.security.watch import Watch
from tests.server_process import ServerProcess, running_server

MAX_BLOCKED_S = 0.1
# On a machine that is busy with other work, every upload delays /healthz, some by this much. The
# bodies that were found first stopped it for 13 s to 280 s.
MAX_RATIO = 2.0
BUSY_S = 0.5
MAX_GROWTH = 300_000_000
ATTEMPTS = 3

FAST = {
    "empty lists, 8 MB",
    "lists in an unknown field",
    "archive of many members",
    "fill-4MB.jpg",
    "chunks.png",
    "scans.jpg",
    "batch: pairs",
    "stored: archive of many members",
    "upload: chunks.png",
}
BODIES = {**all_bodies(), **route_bodies(good_png())}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("blocking")
    with running_server(
        folder, default_model="rootsift", cache_bytes=0, data_dir=folder / "data"
    ) as server:
        made = httpx.put(f"{server.url}/v1/collections/{COLLECTION}", timeout=60)
        assert made.status_code == 201
        yield server


def ordinary_s(server: ServerProcess) -> float:
    """Return the delay of /healthz while two ordinary files of 20 MB are received."""
    content = form("image0", bytes(20_000_000), other=bytes(20_000_000))
    with Watch(server) as seen:
        httpx.post(
            f"{server.url}/v1/match", content=content, headers={"Content-Type": FORM}, timeout=120
        )
    return seen.health_s


@pytest.mark.parametrize(
    "name",
    [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in BODIES],
)
def test_a_hostile_body_neither_blocks_nor_takes_memory(
    attacked: ServerProcess, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body: Body = BODIES[name]
    content = body.make()
    assert len(content) <= 42_000_000
    headers = {"Content-Type": body.content_type, "Accept": body.accept}
    # Other work on the machine delays answers too: the best of a few attempts counts.
    for attempt in range(ATTEMPTS):
        watch = Watch(attacked)
        with watch:
            answer = httpx.request(
                *(body.method, f"{attacked.url}{body.path}"),
                content=content,
                headers=headers,
                timeout=120,
            )
        assert answer.status_code < 500 or answer.status_code == 504, answer.text
        with capsys.disabled():
            print(  # noqa: T201
                f"\n{name}: {len(content) / 1e6:.1f} MB, {answer.status_code}, /healthz "
                f"{1e3 * watch.health_s:.0f} ms, memory +{watch.growth_bytes / 1e6:.0f} MB"
            )
        assert watch.growth_bytes <= MAX_GROWTH
        if watch.health_s <= MAX_BLOCKED_S:
            return
        ordinary = 0.0 if is_exact() else ordinary_s(attacked)
        if watch.health_s <= allowed_s(MAX_BLOCKED_S, max(ordinary, BUSY_S), MAX_RATIO):
            return
        assert attempt < ATTEMPTS - 1, (
            f"/healthz took {watch.health_s:.3f} s, during an ordinary upload {ordinary:.3f} s"
        )
