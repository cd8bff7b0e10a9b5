"""L-5 with its control: the service does not leak, and a service that leaks is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.load.soak import Soak, run
from tests.nightly import budget
from tests.patience import is_exact
from tests.server_process import running_server


def samples(
    memory: Callable[[float], float], more_files: float = 0.0, seconds: float = 600
) -> Soak:
    rng = np.random.default_rng(0)
    at = np.arange(0, seconds, 0.5)
    noise = 10 * rng.random(len(at))  # requests come and go
    rss = [200 + memory(t) + n for t, n in zip(at, noise, strict=True)]
    files = [int(20 + more_files * t / seconds) for t in at]
    return Soak(at_s=list(at), rss_mb=rss, files=files, threads=[12] * len(at))


def test_a_steady_service_passes() -> None:
    assert samples(lambda _: 0.0).problems() == []
    assert samples(lambda t: 60 * min(1.0, t / 100)).problems() == []  # a heap that fills first


@pytest.mark.parametrize("seconds", [60, 600])
def test_a_leak_is_found(seconds: float) -> None:
    assert "memory" in samples(lambda t: 12 * t / 60, seconds=seconds).problems()[0]
    assert samples(lambda _: 0.0, more_files=10, seconds=seconds).problems() == ["files: +7"]


def test_a_small_leak_needs_a_long_run() -> None:
    assert samples(lambda t: 1.5 * t / 60).problems()


@pytest.mark.nightly
def test_nothing_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_server(tmp_path, cache_bytes=0) as server:
        soak = run(server, budget.SOAK_S)
    with capsys.disabled():
        print(  # noqa: T201
            f"\nsoak: {len(soak.statuses)} requests in {budget.SOAK_S:.0f} s, memory "
            f"{soak.rss_mb[len(soak.rss_mb) // 4]:.0f} to {soak.rss_mb[-1]:.0f} MB, files "
            f"{soak.files[0]} to {soak.files[-1]}, threads {soak.threads[0]} to "
            f"{soak.threads[-1]}, p99 drift {soak.drift():.2f}"
        )
    assert set(soak.statuses) <= ({200} if is_exact() else {200, 429})
    assert soak.problems() == []
    assert soak.drift() <= 1.1 or not is_exact()


@pytest.mark.nightly
def test_the_leak_of_a_leaky_service_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_server(tmp_path, cache_bytes=0, module="tests.load.leaky_server") as server:
        soak = run(server, budget.SOAK_S)
    with capsys.disabled():
        print(f"\ncontrol: {soak.problems()}")  # noqa: T201
    assert any("memory" in problem for problem in soak.problems())
