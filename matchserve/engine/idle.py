"""Tell when the service has become idle."""

from __future__ import annotations

import time
from collections.abc import Callable


class IdleWatch:
    """Reports once that the service has been idle for `after_s` seconds after its last work."""

    def __init__(self, after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._after_s = after_s
        self._clock = clock
        self._worked_at: float | None = None

    def has_become_idle(self, *, is_busy: bool) -> bool:
        """Return true once when `after_s` seconds have passed since the service was busy."""
        if is_busy:
            self._worked_at = self._clock()
        elif self._worked_at is not None and self._clock() - self._worked_at >= self._after_s:
            self._worked_at = None
            return True
        return False
