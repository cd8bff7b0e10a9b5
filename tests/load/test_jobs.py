"""Requests while a job runs: L-9; wants a machine with nothing else to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.load.jobs import MAX_P99, MIN_THROUGHPUT, measure
from tests.server_process import running_server


@pytest.mark.nightly
def test_a_job_hardly_slows_requests(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    with running_server(tmp_path, cache_bytes=0, data_dir=tmp_path / "data") as server:
        for phases in measure(server, photos, seconds=10.0, rounds=3):
            assert all(set(seen.statuses) <= {200, 429} for seen in phases.with_job)
            assert not any(seen.broken for seen in phases.with_job)
            assert phases.throughput >= MIN_THROUGHPUT, phases
            assert phases.p99 <= MAX_P99, phases
