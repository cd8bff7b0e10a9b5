"""Let one process at a time write to a run."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.errors import RunBusy

LOCK_FILE = "lock"


@contextmanager
def only_writer(run_dir: Path) -> Iterator[None]:
    """Hold the lock of a run directory; the system frees it when the process ends.

    Raises:
        RunBusy: another process is training this run.
    """
    with (run_dir / LOCK_FILE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunBusy(f"{run_dir}: another process is training this run") from error
        yield
