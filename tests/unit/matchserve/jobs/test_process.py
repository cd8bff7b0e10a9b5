"""The process of a job: its priority, and what its errors tell clients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from matchserve.jobs.process import without_places

AUTOGROUP = Path("/proc/self/autogroup")


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel has no autogroups")
def test_a_job_yields_to_other_sessions() -> None:
    code = (
        "import os; from pathlib import Path; from matchserve.jobs.process import lower_priority;"
        f"lower_priority(7); print(os.nice(0), Path('{AUTOGROUP}').read_text())"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(
        command, capture_output=True, text=True, start_new_session=True, check=True
    )
    assert found.stdout.split()[0] == "7"
    assert found.stdout.split()[-2:] == ["nice", "7"]


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel has no autogroups")
def test_a_process_of_another_session_leaves_that_session_alone() -> None:
    before = AUTOGROUP.read_text(encoding="ascii")
    code = "from matchserve.jobs.process import lower_priority; lower_priority(5)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert AUTOGROUP.read_text(encoding="ascii") == before


def test_errors_do_not_say_where_files_lie() -> None:
    places = {"images": "/srv/a/images", "workspace": "/srv/a", "store": "/srv/s", "results": "/r"}
    told = without_places("no images in /srv/a/images, /srv/s is full", places)
    assert told == "no images in the collection, the collection is full"
