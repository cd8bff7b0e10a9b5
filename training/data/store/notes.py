"""What a store says of its making, as JSON in its `notes`, so that it can be made again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from training.data.store.reader import JSON_FILE
from training.errors import DataError


def to_notes(kind: str, recorded: dict[str, Any]) -> str:
    """Write the options of a store of `kind` (`photos`, `scenes`) as one line."""
    return json.dumps({"kind": kind, **recorded}, sort_keys=True)


def raw_notes(store: Path) -> str:
    """The notes of a store as they are, to be handed on to one made of it.

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
    """The options a store was made with; empty if it does not say.

    Raises:
        DataError: there is no readable store.
    """
    try:
        notes = json.loads(raw_notes(store))
    except ValueError:
        return {}
    return notes if isinstance(notes, dict) else {}
