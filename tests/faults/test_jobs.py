"""Jobs whose processes are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from matchserve.jobs.database import Database
from matchserve.jobs.table import MAX_ATTEMPTS, JobTable
from matchserve.limits import Quotas
from tests.corner_scene import write_scene
from tests.server_process import ServerProcess, running_server

LEASE_S = 3.0
WAIT_S = 300.0  # a guard: the machine may be busy


@pytest.mark.parametrize(
    ("jobs", "kills"), [(60, 4), pytest.param(400, 10, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_killed_workers_lose_no_job(tmp_path: Path, jobs: int, kills: int) -> None:
    database = Database(tmp_path / "jobs.db")
    table = JobTable(database, quotas=Quotas(queued_jobs=jobs), lease_s=LEASE_S)
    names = {
        table.submit(f"owner{n}", {"kind": "shard", "shard": str(n)}, "")[0].id: str(n)
        for n in range(jobs)
    }
    results = tmp_path / "results"
    results.mkdir()
    workers = [_start(tmp_path, results) for _ in range(4)]
    chance = random.Random(0)
    try:
        for _ in range(kills):
            time.sleep(0.3)
            number = chance.randrange(4)
            workers[number].kill()
            workers[number].wait()
            workers[number] = _start(tmp_path, results)
        assert [worker.wait(WAIT_S) for worker in workers] == [0] * 4
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert table.counts() == {"succeeded": jobs}
    assert {name: (results / f"{name}.txt").read_text() for name in names} == names
    finished = [line for f in results.glob("done-*") for line in f.read_text().split()]
    assert len(finished) == len(set(finished))
    with database.read() as db:
        (attempts, most) = db.execute("SELECT sum(attempts), max(attempts) FROM job").fetchone()
    # On a busy machine a worker may be late, and another does its job again.
    late = sum(len(f.read_text().split()) for f in results.glob("late-*"))
    assert jobs <= attempts <= jobs + kills + late
    assert most <= MAX_ATTEMPTS


def _start(folder: Path, results: Path) -> subprocess.Popen[bytes]:
    command = ["-m", "tests.faults.job_worker", folder / "jobs.db", results, LEASE_S]
    return subprocess.Popen([sys.executable, *map(str, command)])


def test_the_process_of_a_job_ends_with_the_service_and_its_job_goes_on(tmp_path: Path) -> None:
    write_scene(tmp_path / "scene", 4)
    settings = {
        "data_dir": tmp_path / "data", "sources": tmp_path / "scene", "default_model": "rootsift",
        "job_niceness": 0,
    }  # fmt: skip
    body = {"kind": "match_collection", "source": str(tmp_path / "scene"), "max_keypoints": 300}
    with running_server(tmp_path, **settings) as server:
        job = httpx.post(f"{server.url}/v1/jobs", json=body, timeout=60).json()["id"]
        child = _job_process(server)
        server.process.kill()
        server.process.wait()
        child.wait(60)
        assert not child.is_running()
    database = Database(tmp_path / "data" / "service.db")
    with database.write() as db:  # the lease expires
        db.execute("UPDATE job SET lease_until = 0")
    command = [sys.executable, "-m", "matchserve", "worker", "--until-idle"]
    variables = {f"MATCHSERVE_{k.upper()}": str(v) for k, v in settings.items()}
    subprocess.run(command, env={**os.environ, **variables}, check=True, timeout=WAIT_S)
    found = JobTable(database).get("public", job)
    assert (found.state, found.attempts) == ("succeeded", 2)


def test_a_killed_job_fails_with_a_reason(tmp_path: Path) -> None:
    write_scene(tmp_path / "scene", 4)
    with running_server(
        tmp_path, data_dir=tmp_path / "data", sources=tmp_path / "scene", default_model="rootsift"
    ) as server:
        body = {"kind": "match_collection", "source": str(tmp_path / "scene")}
        job = httpx.post(f"{server.url}/v1/jobs", json=body, timeout=60).json()["id"]
        os.kill(_job_process(server).pid, signal.SIGKILL)
        end = time.monotonic() + WAIT_S
        found: dict[str, Any] = {"state": "queued"}
        while found["state"] != "failed" and time.monotonic() < end:
            time.sleep(0.1)
            found = httpx.get(f"{server.url}/v1/jobs/{job}", timeout=60).json()
        assert found["error"]["code"] == "worker_lost"
        assert "Traceback" not in server.log()


def _job_process(server: ServerProcess) -> psutil.Process:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        for child in psutil.Process(server.process.pid).children():
            with suppress(psutil.Error):
                if "matchserve.jobs.process" in child.cmdline():
                    return child
        time.sleep(0.01)
    raise AssertionError(server.log())
