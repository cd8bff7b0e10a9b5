"""Progress as lines of text, for output that goes to a file or a pipe, where a bar cannot move."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

INTERVAL_S = 60.0
WIDTH = 80


class ProgressLines:
    """Prints a line a minute: how much is done, the time taken and the time left.

    `first` of `total` things were done before this process began.
    """

    def __init__(
        self,
        label: str,
        total: int,
        *,
        first: int = 0,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str], object] | None = None,
    ) -> None:
        self._label, self._total, self._first = label, total, first
        self._clock, self._write = clock, write or _write_to_stderr
        self._began = self._printed = clock()

    def advance(self, done: int, note: str = "") -> None:
        """Print a line if a minute has passed since the last one, with `note` if there is room."""
        now = self._clock()
        if now - self._printed < INTERVAL_S:
            return
        self._printed = now
        elapsed = now - self._began
        left = elapsed / max(1, done - self._first) * (self._total - done)
        text = f"{done}/{self._total}, {clock_text(elapsed)} elapsed, {clock_text(left)} left"
        room = WIDTH - len(text) - 2
        label = self._label if len(self._label) <= room else f"{self._label[: room - 1]}…"
        line = f"{label}: {text}"
        if note and len(line) + len(note) + 2 <= WIDTH:
            line += f", {note}"
        self._write(f"{line}\n")


def clock_text(seconds: float) -> str:
    """Return a duration as minutes and seconds, or with hours: 4:07, 1:02:30."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _write_to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
