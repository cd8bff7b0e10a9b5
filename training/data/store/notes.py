"""The options that a store was made with, as JSON in its `notes`, so that it can be made again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from training.data.store.reader import JSON_FILE
from training.errors import DataError


def to_notes(kind: str, recorded: dict[str, Any]) -> str:
    """Return the options of a store of `kind` (`photos`, `scenes`, ...) as one line of JSON."""
    return json.dumps({"kind": kind, **recorded}, sort_keys=True)


def raw_notes(store: Path) -> str:
    """Return the notes of a store unchanged, to copy them to a store derived from it.

    Raises:
        DataError: there is no readable store.
    """
    path = store / JSON_FILE
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not readable, {error}") from error
    return str(head.get("notes", ""))


def read_notes(store: Path) -> dict[str, Any]:
    """Return the options that a store was made with; empty if they are not recorded.

    Raises:
        DataError: there is no readable store.
    """
    try:
        notes = json.loads(raw_notes(store))
    except ValueError:
        return {}
    return notes if isinstance(notes, dict) else {}
