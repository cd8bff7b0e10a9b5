"""Errors of SQLite databases, translated once for all of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matchserve.errors import StorageDamaged, StorageFull


@contextmanager
def typed_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours.

    Raises:
        StorageFull: there is no room on the disk.
        StorageDamaged: any other failure of the database.
    """
    try:
        yield
    except sqlite3.Error as error:
        # Writing past a quota or a limit on file size is reported as an I/O error.
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHM")):
            raise StorageFull(f"cannot write {path}: {error}") from error
        raise StorageDamaged(f"{path} cannot be used: {error}") from error
