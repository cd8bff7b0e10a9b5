"""F-4: whatever is sent, the service answers with HTTP or closes, and stays alive."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.nightly import budget
from tests.nightly.raw_http import exchange, requests
from tests.server_process import running_server

# After a 100 a second status line belongs to the same answer.
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
BRIEF_CASES = 1000


@pytest.mark.parametrize(
    "cases",
    [BRIEF_CASES, pytest.param(budget.HTTP_CASES, marks=pytest.mark.nightly)],
    ids=["brief", "long"],
)
def test_mutated_requests_are_answered_or_closed(
    tmp_path: Path, cases: int, capsys: pytest.CaptureFixture[str]
) -> None:
    statuses: Counter[str] = Counter()
    with running_server(tmp_path, default_model="rootsift", receive_s=5) as server:
        for number, data in enumerate(requests(cases, seed=cases)):
            answer = exchange(server.port, data)
            found = STATUS.match(answer)
            assert found or not answer, (number, data[:200], answer[:200])
            status = found[1].decode() if found else "closed"
            assert status != "500", (number, data[:200])
            statuses[status] += 1
        assert httpx.get(f"{server.url}/readyz", timeout=60).status_code == 200
        assert "Traceback" not in server.log()
    with capsys.disabled():
        print(f"\n{cases} mutated requests: {dict(statuses)}")  # noqa: T201
    # The mutations leave some requests whole and break most of them.
    assert statuses["200"]
    assert statuses["400"]
    assert len(statuses) >= 5
