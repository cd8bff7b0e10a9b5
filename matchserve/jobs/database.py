"""The SQLite database of a service: its jobs, their events, and what was uploaded.

Several processes of one machine share it. A row is written before the client gets its response, and
survives a crash.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from matchserve.databases import typed_errors
from matchserve.errors import MissingInput, WorkspaceMismatch

VERSION = 1
BUSY_S = 20.0
"""Maximum time to wait for another process that is writing."""

_SCHEMA = """
CREATE TABLE job(
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, owner TEXT NOT NULL, target TEXT NOT NULL,
  idempotency_key TEXT, body TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
  progress TEXT, outcome TEXT, attempts INTEGER NOT NULL DEFAULT 0, lease_owner TEXT,
  lease_until REAL, is_cancelled INTEGER NOT NULL DEFAULT 0, created REAL NOT NULL, started REAL,
  finished REAL, UNIQUE (owner, idempotency_key));
CREATE INDEX job_state ON job(state);
CREATE TABLE job_event(
  job TEXT NOT NULL REFERENCES job ON DELETE CASCADE, seq INTEGER NOT NULL, at REAL NOT NULL,
  kind TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (job, seq)) WITHOUT ROWID;
CREATE TABLE collection(
  owner TEXT NOT NULL, name TEXT NOT NULL, created REAL NOT NULL, PRIMARY KEY (owner, name));
CREATE TABLE upload(
  owner TEXT NOT NULL, collection TEXT NOT NULL, name TEXT NOT NULL, bytes INTEGER NOT NULL,
  sha256 TEXT NOT NULL, PRIMARY KEY (owner, collection, name),
  FOREIGN KEY (owner, collection) REFERENCES collection ON DELETE CASCADE) WITHOUT ROWID;
"""


class Database:
    """Opens a connection for each transaction, so that any thread may use it."""

    def __init__(self, path: Path) -> None:
        """Create the database if it is new.

        Raises:
            MissingInput: its folder cannot be created.
            StorageDamaged: the file is not such a database.
            WorkspaceMismatch: another version of matchserve made it.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MissingInput(f"cannot write to {path.parent}: {error.strerror}") from error
        with typed_errors(path), closing(self._connect()) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("BEGIN IMMEDIATE")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {VERSION}")
            elif version != VERSION:
                raise WorkspaceMismatch(f"{path} has version {version}, not {VERSION}")
            db.execute("COMMIT")

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that writes; it waits for those of other processes.

        Raises:
            StorageFull: there is no room on the disk.
            StorageDamaged: any other failure of the database.
        """
        with typed_errors(self.path), closing(self._connect()) as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Open a connection that reads.

        Raises:
            StorageDamaged: the database failed.
        """
        with typed_errors(self.path), closing(self._connect()) as db:
            yield db

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA synchronous = FULL")
        return db
