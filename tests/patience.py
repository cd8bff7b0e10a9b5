"""How long something may take on a machine that other work may slow down.

A bar in seconds is for a quiet machine. By default a test also accepts a multiple of ordinary work
that it measures in the same run; with EXACT_TIMES=1 (`make test-nightly`) only the bar counts.
"""

from __future__ import annotations

import os


def is_exact() -> bool:
    """Return whether bars in seconds hold as they are, because the machine is quiet."""
    return os.environ.get("EXACT_TIMES") == "1"


def allowed_s(bar_s: float, ordinary_s: float, ratio: float) -> float:
    """Return the bar, or `ratio` times the ordinary duration on this machine if that is more."""
    return bar_s if is_exact() else max(bar_s, ratio * ordinary_s)
