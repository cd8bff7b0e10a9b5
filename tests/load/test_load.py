"""Load, measured against lone requests of the same run; wants a machine with nothing else to do.

On a busy machine the figures are the other work's too: `python -m tests.load.report` prints them
all, with the processor time of an answer beside the wall clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from matchserve.hardware import available_cpus
from tests.load.report import Figures, measure
from tests.server_process import running_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Figures]:
    """Every request on one core, so that the multiples of L1 have their meaning."""
    folder: Path = tmp_path_factory.mktemp("load")
    with running_server(folder, cache_bytes=0, lone_request_threads=1) as server:
        yield measure(server, seconds=60)


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Figures]:
    """As it is by default: every core for a lone request."""
    with running_server(tmp_path_factory.mktemp("load"), cache_bytes=0) as server:
        yield measure(server, seconds=60)


def test_the_figures_are_printed(
    lanes: Figures, default: Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        for figures in (lanes, default):
            print("\n" + "\n".join(map(str, figures.lines(lanes.lone_s))))  # noqa: T201


def test_eight_clients_are_all_served(lanes: Figures) -> None:
    assert set(lanes.eight.statuses) == {200}
    assert lanes.eight.broken == 0
    assert lanes.eight.p(99) <= 6 * lanes.lone_s
    assert lanes.eight.goodput >= 1.6 / lanes.lone_s


def test_sixty_four_clients_are_served_or_told_to_wait(lanes: Figures) -> None:
    assert set(lanes.many.statuses) == {200, 429}
    assert lanes.many.broken == 0
    assert all(1 <= seconds <= 30 for seconds in lanes.many.retry_after)
    assert lanes.many.goodput >= 0.9 * lanes.eight.goodput
    assert lanes.many.p(99, "refused_s") <= 0.1
    assert lanes.many.p(99, "health_s") <= 0.05


def test_it_recovers(lanes: Figures) -> None:
    assert lanes.recovery_s <= 3
    assert lanes.recovered_lone_s <= 1.2 * lanes.lone_s
    assert lanes.rss_after <= 1.15 * lanes.rss_before


def test_sharing_cores_costs_no_processor_time(lanes: Figures) -> None:
    """Independent of other work on the machine: what an answer costs, alone and among eight."""
    assert lanes.cpu_capacity >= 1.6


def test_nobody_is_overtaken(lanes: Figures) -> None:
    """First come, first served: the slowest of eight waits hardly longer than the middle one."""
    assert lanes.eight.p(99) <= 1.5 * lanes.eight.p(50)


def test_a_lone_request_gets_every_core(lanes: Figures, default: Figures) -> None:
    assert default.eight.goodput >= 0.95 / default.lone_s
    if available_cpus() > 1:
        assert default.lone_s <= 0.75 * lanes.lone_s


def test_what_lone_requests_get_is_taken_from_nobody(lanes: Figures, default: Figures) -> None:
    """Under load both services work alike, so the bars hold against L1 of one core."""
    assert default.eight.p(99) <= 6 * lanes.lone_s
    assert default.eight.goodput >= 1.6 / lanes.lone_s
    assert default.many.goodput >= 0.9 * default.eight.goodput
