"""Claim jobs and do them slowly, until none is left; run by `test_jobs.py` and killed by it.

python -m tests.faults.job_worker DATABASE RESULTS LEASE_S
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from matchserve.files import write_text_whole
from matchserve.jobs.database import Database
from matchserve.jobs.table import JobTable, new_lease_owner


def main() -> None:
    table = JobTable(Database(Path(sys.argv[1])), lease_s=float(sys.argv[3]))
    results, me = Path(sys.argv[2]), new_lease_owner()
    while table.counts().keys() & {"queued", "running"}:
        job = table.claim(me)
        if job is None:
            time.sleep(0.02)
            continue
        time.sleep(0.02)
        write_text_whole(results / f"{job.id}.txt", job.body["shard"])
        is_mine = table.finish(job.id, me, "succeeded", {"by": me})
        with (results / f"{'done' if is_mine else 'late'}-{me}").open("a") as file:
            file.write(f"{job.id}\n")


if __name__ == "__main__":
    main()
