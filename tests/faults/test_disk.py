"""D-10: the disk reports an error when data are flushed; nothing acknowledged is lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from matchserve.collections.ledger import Ledger

needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is missing: apt-get install strace"
)

FILES = """
import sys
from pathlib import Path
from matchserve.files import write_whole
for number in range(5):
    try:
        write_whole(Path(sys.argv[1]), b"version %d" % number)
        print("written", number, flush=True)
    except OSError as error:
        print("failed", number, error.errno, flush=True)
"""

LEDGER = """
import sys
from pathlib import Path
from matchserve.collections.ledger import Ledger
from matchserve.errors import MatchServeError
for number in range(5):
    try:
        ledger = Ledger(Path(sys.argv[1]))
        ledger.set_setup(f"setup {number}")
        ledger.close()
        print("written", number, flush=True)
    except MatchServeError as error:
        print("failed", number, error.code, flush=True)
"""


def with_failing_flush(program: str, path: Path, when: str) -> list[list[str]]:
    """Run a program whose calls of fsync number `when` fail; return the words that it prints."""
    calls = "fsync,fdatasync"
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}",
         "-e", f"inject={calls}:error=EIO:when={when}", sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    if "ptrace" in done.stderr and not done.stdout:
        pytest.skip("this machine does not allow strace")
    assert done.returncode == 0, done.stderr[-2000:]
    return [line.split() for line in done.stdout.splitlines()]


@needs_strace
@pytest.mark.parametrize("when", ["1", "3", "5..6", "3+"])
def test_a_file_that_cannot_be_flushed_is_not_acknowledged(tmp_path: Path, when: str) -> None:
    path = tmp_path / "file"
    lines = with_failing_flush(FILES, path, when)
    written = [int(line[1]) for line in lines if line[0] == "written"]
    failed = [line for line in lines if line[0] == "failed"]
    assert failed, "no flush failed"
    assert all(line[2] == "5" for line in failed)  # EIO
    assert written or when == "1"
    if written:
        # A failed write may leave the new version, but never a damaged or an older one.
        assert int(path.read_bytes().split()[1]) >= written[-1]
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@needs_strace
@pytest.mark.parametrize("when", ["16+", "8"])
def test_a_ledger_that_cannot_be_flushed_is_not_acknowledged(tmp_path: Path, when: str) -> None:
    path = tmp_path / "ledger.sqlite"
    lines = with_failing_flush(LEDGER, path, when)
    written = [int(line[1]) for line in lines if line[0] == "written"]
    failed = [line for line in lines if line[0] == "failed"]
    assert failed, "no flush failed"
    assert all(line[2] == "storage_damaged" for line in failed)
    ledger = Ledger(path)
    assert int(str(ledger.setup()).split()[1]) >= written[-1]
    ledger.set_setup("setup 9")  # the database works again
    ledger.close()
