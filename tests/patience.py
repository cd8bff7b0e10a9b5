"""How long something may take on a machine that other work may slow down.

A bar in seconds is for a quiet machine. By default a test also accepts a multiple of ordinary work
that it measures in the same run; with EXACT_TIMES=1 (`make test-nightly`) only the bar counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

GUARD_S = 120.0
"""How long a test waits for what must happen: a guard against hanging, not a bar."""


def is_exact() -> bool:
    """Return whether bars in seconds hold as they are, because the machine is quiet."""
    return os.environ.get("EXACT_TIMES") == "1"


def allowed_s(bar_s: float, ordinary_s: float, ratio: float) -> float:
    """Return the bar, or `ratio` times the ordinary duration on this machine if that is more."""
    return bar_s if is_exact() else max(bar_s, ratio * ordinary_s)


def wait_until(is_wanted: Callable[[], bool], limit_s: float = GUARD_S) -> None:
    """Wait for a condition that must come true, however busy this machine is."""
    end = time.monotonic() + limit_s
    while not is_wanted():
        assert time.monotonic() < end
        time.sleep(0.02)
