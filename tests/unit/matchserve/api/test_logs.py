from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading

from matchserve.api.logs import (
    ACCESS,
    MAX_IN_WINDOW,
    WINDOW_S,
    JsonLines,
    NonBlockingHandler,
    RateFilter,
)


def record(name: str = "x", line: int = 1) -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, "file.py", line, "message", (), None)


def test_a_reader_that_is_gone_blocks_nobody() -> None:
    """A pipe that nobody reads is full after 64 kB."""
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    handler = NonBlockingHandler(stream, max_lines=100)
    handler.setFormatter(JsonLines())
    done = threading.Event()

    def log() -> None:
        for _ in range(5000):
            handler.emit(record())
        done.set()

    threading.Thread(target=log, daemon=True).start()
    assert done.wait(30)
    assert handler.dropped > 1000
    # The reader comes back: the lines that waited arrive.
    received: list[bytes] = []

    def read() -> None:
        while data := os.read(reading, 65536):
            received.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    while handler._lines.qsize():
        handler.flush()
    handler.flush()
    stream.close()
    reader.join()
    os.close(reading)
    assert b"".join(received).count(b"\n") == 5000 - handler.dropped


_INTERRUPTED = """
import logging, signal, sys
from matchserve.api import logs
logs.configure("json")
log = logging.getLogger(logs.ACCESS)
signal.signal(signal.SIGALRM, lambda *_: log.info("from the handler"))
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
for number in range(20_000):
    log.info("message")
signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_a_signal_handler_may_log_while_its_thread_does() -> None:
    """SIGTERM is logged: a lock in the handler made one of four shutdowns hang."""
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED], stderr=subprocess.DEVNULL, timeout=300, check=False
    )
    assert done.returncode == 0


def test_lines_are_written_in_order() -> None:
    stream = io.StringIO()
    handler = NonBlockingHandler(stream)
    handler.setFormatter(JsonLines())
    for line in range(50):
        handler.emit(record(name=f"n{line}"))
    handler.flush()
    names = [json.loads(line)["logger"] for line in stream.getvalue().splitlines()]
    assert names == [f"n{line}" for line in range(50)]


def test_a_line_that_logs_too_often_is_counted_instead() -> None:
    now = [0.0]
    limit = RateFilter(clock=lambda: now[0])
    written = sum(bool(limit.filter(record())) for _ in range(16_000))
    assert written == MAX_IN_WINDOW
    assert limit.filter(record(line=2))
    assert all(limit.filter(record(ACCESS)) for _ in range(1000))
    now[0] = WINDOW_S
    later = record()
    assert limit.filter(later)
    assert later.__dict__["dropped_before"] == 16_000 - MAX_IN_WINDOW
