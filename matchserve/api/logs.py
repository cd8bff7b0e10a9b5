"""One line a record: JSON for machines, short text for a terminal."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import orjson

ACCESS = "matchserve.access"

# What every record has; anything else was given as `extra` and is written too.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message"}


class JsonLines(logging.Formatter):
    """A record as one JSON object; nothing that a client sends can begin a second line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
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
    """A record for people, with control characters made visible."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line; a traceback follows on lines of its own."""
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


def configure(log_format: str) -> None:
    """Send all logs to standard error in one format; `auto` is text on a terminal."""
    is_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.setFormatter(TextLines() if is_text else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    logging.getLogger("faiss").setLevel(logging.WARNING)  # it tells how it was loaded
