"""The process of a job: its priority, and what its errors tell clients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from matchserve.jobs.process import without_places

AUTOGROUP = Path("/proc/self/autogroup")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the policy")
@pytest.mark.parametrize("niceness", [7, 19])
def test_a_job_of_the_lowest_priority_only_uses_time_that_is_left_over(niceness: int) -> None:
    found = printed(
        "import os; from matchserve.jobs.process import lower_priority;"
        f"lower_priority({niceness});"
        "print(os.nice(0), os.sched_getscheduler(0) == os.SCHED_IDLE)"
    )
    assert found == f"{niceness} {niceness == 19}"


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel has no autogroups")
@pytest.mark.parametrize("leads", [True, False])
def test_a_worker_lowers_the_session_that_it_leads_and_no_other(*, leads: bool) -> None:
    before = AUTOGROUP.read_text(encoding="ascii")
    found = printed(
        "from pathlib import Path; from matchserve.jobs.process import lower_session;"
        f"lower_session(7); print(Path('{AUTOGROUP}').read_text())",
        leads=leads,
    )
    assert found.endswith("nice 7" if leads else before.strip())
    assert AUTOGROUP.read_text(encoding="ascii") == before


def printed(code: str, *, leads: bool = False) -> str:
    """Run code in a process, in a session of its own if it is to lead one."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, start_new_session=leads, check=True
    )
    return done.stdout.strip()


def test_errors_do_not_say_where_files_lie() -> None:
    places = {"images": "/srv/a/images", "workspace": "/srv/a", "store": "/srv/s", "results": "/r"}
    told = without_places("no images in /srv/a/images, /srv/s is full", places)
    assert told == "no images in the collection, the collection is full"
