"""What a runner makes of the process of a job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from matchserve.jobs.database import Database
from matchserve.jobs.kinds import JobRequest, Order
from matchserve.jobs.runner import Runner
from matchserve.jobs.table import Job, JobTable
from matchserve.limits import Quotas

BODY = {"kind": "match_collection", "collection": "a"}


def test_a_process_that_dies_before_it_reads_its_order_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = JobTable(Database(tmp_path / "jobs.db"), quotas=Quotas(), lease_s=60)
    job, _ = table.submit("me", BODY, "collection:a")
    monkeypatch.setattr(sys, "executable", "false")

    def order(_: Job) -> Order:
        # Longer than a pipe holds, so that writing it fails when the process is dead.
        return Order(
            request=JobRequest.model_validate(BODY),
            images=tmp_path / ("x" * 200_000),
            workspace=tmp_path,
            store=tmp_path,
            results=tmp_path,
            cores=1,
        )

    Runner(table, order, tmp_path / "logs").run(until_idle=True)
    failed = table.get("me", job.id)
    assert failed.state == "failed"
    assert failed.outcome is not None
    assert failed.outcome["error"]["code"] == "worker_lost"
