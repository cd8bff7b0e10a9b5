"""Log one line per record, without ever blocking: JSON for machines, text for a terminal."""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

ACCESS = "matchserve.access"

MAX_IN_WINDOW, WINDOW_S = 20, 10.0
"""How often one line of code may log in a window of seconds."""
MAX_QUEUED_LINES = 10_000
FLUSH_S = 2.0

# Attributes of every record; all others were given as `extra` and are written too.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message"}


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object; nothing that a client sends can begin a second line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields.update((k, v) for k, v in record.__dict__.items() if k not in _STANDARD)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(fields, default=str).decode()


class TextLines(logging.Formatter):
    """Formats a record for people, with control characters made visible."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line; a traceback follows on its own lines."""
        if record.name == ACCESS:
            extra = record.__dict__
            record.msg = (
                (
                    f"{extra.get('status')} {extra.get('method')} {extra.get('path')} "
                    f"{extra.get('duration_ms')} ms"
                )
                .encode("unicode_escape")
                .decode()
            )
            record.args = ()
        return super().format(record)


class RateFilter(logging.Filter):
    """Drops records of a line of code that logs too often, and counts them in the next one.

    A process that has no file descriptors left reports each failed `accept` thousands of times.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[tuple[str, int], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written."""
        if record.name == ACCESS:
            return True
        now = self._clock()
        window = self._windows.setdefault((record.pathname, record.lineno), _Window(now))
        if now - window.start >= WINDOW_S:
            if window.count > MAX_IN_WINDOW:
                record.__dict__["dropped_before"] = window.count - MAX_IN_WINDOW
            window.start, window.count = now, 0
        window.count += 1
        return window.count <= MAX_IN_WINDOW


@dataclass(slots=True)
class _Window:
    start: float
    count: int = 0


class NonBlockingHandler(logging.Handler):
    """Writes lines on a thread of its own, and drops them when the reader of the log is too slow.

    A full pipe blocks whoever writes to it: no request may wait for that. A signal handler may log
    while the thread that it interrupts does: `SimpleQueue` allows that, a queue with a lock of its
    own would wait for itself for ever.
    """

    def __init__(self, stream: TextIO, max_lines: int = MAX_QUEUED_LINES) -> None:
        super().__init__()
        self._stream = stream
        self._max_lines = max_lines
        self._lines: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        self.dropped = 0
        """Number of lines that were dropped so far."""
        threading.Thread(target=self._write, name="matchserve-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one record."""
        if self._lines.qsize() < self._max_lines:
            self._lines.put(self.format(record))
        else:
            self.dropped += 1

    def flush(self) -> None:
        """Wait a moment for the queued lines to be written."""
        is_written = threading.Event()
        self._lines.put(is_written)
        is_written.wait(FLUSH_S)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(line + "\n")
                self._stream.flush()


def configure(log_format: str) -> None:
    """Send all logs to standard error in one format; `auto` is text on a terminal."""
    is_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler = NonBlockingHandler(sys.stderr)
    handler.setFormatter(TextLines() if is_text else JsonLines())
    handler.addFilter(RateFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    logging.getLogger("faiss").setLevel(logging.WARNING)  # it logs how it was loaded
