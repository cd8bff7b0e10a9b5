"""The ledger of a workspace: an SQLite database of its images, pairs and shards.

The process that runs the collection is its only writer. It holds nothing that cannot be found
again from the images and the stored results.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from matchserve.collections.facts import Facts
from matchserve.collections.work import Described, Matched
from matchserve.databases import typed_errors
from matchserve.errors import WorkspaceMismatch
from matchserve.geotiff import GeoReference

VERSION = 1
_SCHEMA = """
CREATE TABLE setup(id INTEGER PRIMARY KEY CHECK (id = 1), text TEXT NOT NULL);
CREATE TABLE choice(id INTEGER PRIMARY KEY CHECK (id = 1), stamp TEXT NOT NULL);
CREATE TABLE image(
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, bytes INTEGER, mtime_ns INTEGER, sha256 TEXT,
  feature_key TEXT, keypoints INTEGER, facts TEXT, code TEXT, detail TEXT,
  state TEXT NOT NULL CHECK (state IN ('new', 'described', 'refused', 'gone')));
CREATE TABLE pair(
  image0 INTEGER NOT NULL REFERENCES image, image1 INTEGER NOT NULL REFERENCES image,
  reasons INTEGER NOT NULL, shard TEXT NOT NULL, matches INTEGER, inliers INTEGER,
  is_verified INTEGER, same_scene REAL,
  PRIMARY KEY (image0, image1), CHECK (image0 < image1)) WITHOUT ROWID;
CREATE INDEX pair_shard ON pair(shard);
CREATE TABLE shard(
  id TEXT PRIMARY KEY, items INTEGER NOT NULL, seconds REAL,
  state TEXT NOT NULL CHECK (state IN ('planned', 'done'))) WITHOUT ROWID;
"""

_COLUMNS = "id, name, bytes, mtime_ns, state, feature_key, keypoints, facts, code, detail"

State = Literal["new", "described", "refused", "gone"]


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One image of the collection, as the ledger knows it."""

    id: int
    name: str
    bytes: int
    mtime_ns: int
    state: State
    feature_key: str
    keypoints: int
    facts: Facts | None
    code: str
    detail: str


class Ledger:
    """Reads and writes the ledger; each method is one transaction."""

    def __init__(self, path: Path, *, is_read_only: bool = False) -> None:
        """Open the ledger, and create it unless it is opened to read.

        Raises:
            StorageDamaged: the file is not a ledger.
            WorkspaceMismatch: another version of matchserve made it.
        """
        mode = "ro" if is_read_only else "rwc"
        with typed_errors(path):
            self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)
            self._db.execute("PRAGMA foreign_keys = ON")
            if not is_read_only:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and not is_read_only:
                self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
            elif version != VERSION:
                raise WorkspaceMismatch(f"{path} has version {version}, not {VERSION}")
        self.path = path

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with typed_errors(self.path), self._db:
            yield self._db

    def setup(self) -> str | None:
        """Return what the workspace was made for, or None if it is new."""
        with typed_errors(self.path):
            row = self._db.execute("SELECT text FROM setup").fetchone()
        return str(row[0]) if row else None

    def set_setup(self, text: str) -> None:
        """Record what the workspace is made for."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO setup VALUES (1, ?)", (text,))

    def choice(self) -> str | None:
        """Return the stamp of the images and rule that the pairs were chosen by."""
        with typed_errors(self.path):
            row = self._db.execute("SELECT stamp FROM choice").fetchone()
        return str(row[0]) if row else None

    def images(self) -> list[ImageRow]:
        """Return all images in the order they were added."""
        with typed_errors(self.path):
            rows = self._db.execute(f"SELECT {_COLUMNS} FROM image ORDER BY id").fetchall()  # noqa: S608
        return [_image_row(row) for row in rows]

    def image(self, name: str) -> ImageRow | None:
        """Return the image of a name, or None."""
        with typed_errors(self.path):
            row = self._db.execute(
                f"SELECT {_COLUMNS} FROM image WHERE name = ?",  # noqa: S608
                (name,),
            ).fetchone()
        return None if row is None else _image_row(row)

    def add_images(self, files: Iterable[tuple[str, int, int]]) -> None:
        """Add or reset images, given by name, bytes and time of change: they will be described."""
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO image(name, bytes, mtime_ns, state) VALUES (?, ?, ?, 'new') "
                "ON CONFLICT(name) DO UPDATE SET bytes = excluded.bytes, "
                "mtime_ns = excluded.mtime_ns, state = 'new'",
                files,
            )

    def set_described(self, receipts: Iterable[Described]) -> None:
        """Record what became of images, and forget the pairs of those whose features changed."""
        with self._transaction() as db:
            for receipt in receipts:
                facts = None if receipt.facts is None else json.dumps(asdict(receipt.facts))
                number, key = db.execute(
                    "SELECT id, feature_key FROM image WHERE name = ?", (receipt.name,)
                ).fetchone()
                if key is not None and key != receipt.key:
                    db.execute("DELETE FROM pair WHERE ? IN (image0, image1)", (number,))
                db.execute(
                    "UPDATE image SET state = ?, sha256 = ?, feature_key = ?, keypoints = ?, "
                    "facts = ?, code = ?, detail = ? WHERE name = ?",
                    (
                        "refused" if receipt.code else "described", receipt.sha256, receipt.key,
                        receipt.keypoints, facts, receipt.code, receipt.detail, receipt.name,
                    ),
                )  # fmt: skip

    def set_gone(self, names: Iterable[str]) -> None:
        """Record that images are no longer there, and forget their pairs."""
        with self._transaction() as db:
            for name in names:
                db.execute(
                    "DELETE FROM pair WHERE (SELECT id FROM image WHERE name = ?) "
                    "IN (image0, image1)",
                    (name,),
                )
                db.execute("UPDATE image SET state = 'gone' WHERE name = ?", (name,))

    def pairs(self) -> NDArray[np.int64]:
        """Return all planned pairs, (P, 6): image0, image1, reasons, matches, inliers, is_verified.

        The last three are -1 until the pair was matched.
        """
        with typed_errors(self.path):
            rows = self._db.execute(
                "SELECT image0, image1, reasons, ifnull(matches, -1), ifnull(inliers, -1), "
                "ifnull(is_verified, -1) FROM pair ORDER BY image0, image1"
            )
            flat = np.fromiter((value for row in rows for value in row), np.int64)
        return flat.reshape(-1, 6)

    def plan(self, shards: Sequence[tuple[str, NDArray[np.int64]]], stamp: str = "") -> None:
        """Record shards, each with its pairs as (n, 3): image0, image1, reasons.

        `stamp` is what the pairs were chosen by.
        """
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO choice VALUES (1, ?)", (stamp,))
            db.executemany(
                "INSERT OR IGNORE INTO shard(id, items, state) VALUES (?, ?, 'planned')",
                ((name, len(rows)) for name, rows in shards),
            )
            db.executemany(
                "INSERT INTO pair(image0, image1, reasons, shard) VALUES (?, ?, ?, ?)",
                ((*row, name) for name, rows in shards for row in rows.tolist()),
            )

    def add_reasons(self, rows: Iterable[tuple[int, int, int]]) -> None:
        """Replace the reasons of planned pairs, given as image0, image1, reasons."""
        with self._transaction() as db:
            db.executemany("UPDATE pair SET reasons = ?3 WHERE image0 = ?1 AND image1 = ?2", rows)

    def forget_pairs(self, rows: Iterable[tuple[int, int]]) -> None:
        """Remove pairs that the collection no longer has."""
        with self._transaction() as db:
            db.executemany("DELETE FROM pair WHERE image0 = ? AND image1 = ?", rows)

    def reopen(self, shard: str) -> None:
        """Record that a shard must be matched again: its result is lost."""
        with self._transaction() as db:
            db.execute("UPDATE shard SET state = 'planned' WHERE id = ?", (shard,))
            db.execute(
                "UPDATE pair SET matches = NULL, inliers = NULL, is_verified = NULL, "
                "same_scene = NULL WHERE shard = ?",
                (shard,),
            )

    def pair_counts(self) -> tuple[int, int]:
        """Return the number of pairs, and of those that were matched."""
        with typed_errors(self.path):
            row = self._db.execute("SELECT count(*), count(matches) FROM pair").fetchone()
        return int(row[0]), int(row[1])

    def shards(self, state: Literal["planned", "done"] | None = None) -> list[tuple[str, int]]:
        """Return the name and size of shards that have pairs."""
        with typed_errors(self.path):
            return self._db.execute(
                "SELECT id, items FROM shard WHERE ?1 IS NULL OR state = ?1 ORDER BY id", (state,)
            ).fetchall()

    def shard_pairs(self, shard: str) -> list[tuple[int, int]]:
        """Return the pairs of a shard as image numbers, in the order they are matched."""
        with typed_errors(self.path):
            return self._db.execute(
                "SELECT image0, image1 FROM pair WHERE shard = ? ORDER BY image1, image0", (shard,)
            ).fetchall()

    def shard_of(self, image0: int, image1: int) -> str | None:
        """Return the shard of a pair that was matched, or None."""
        with typed_errors(self.path):
            row = self._db.execute(
                "SELECT shard FROM pair WHERE image0 = ? AND image1 = ? AND matches IS NOT NULL",
                (image0, image1),
            ).fetchone()
        return str(row[0]) if row else None

    def set_matched(self, receipt: Matched, pairs: Sequence[tuple[int, int]]) -> None:
        """Record the result of a shard with these pairs."""
        numbers = zip(
            receipt.matches.tolist(),
            receipt.inliers.tolist(),
            receipt.is_verified.tolist(),
            (None if np.isnan(v) else float(v) for v in receipt.same_scene),
            pairs,
            strict=True,
        )
        with self._transaction() as db:
            db.executemany(
                "UPDATE pair SET matches = ?, inliers = ?, is_verified = ?, same_scene = ? "
                "WHERE image0 = ? AND image1 = ?",
                ((*values, *pair) for *values, pair in numbers),
            )
            db.execute(
                "UPDATE shard SET state = 'done', seconds = ? WHERE id = ?",
                (receipt.seconds, receipt.id),
            )

    def drop_shards(self, shards: Iterable[str]) -> None:
        """Forget shards together with their pairs, which are planned anew."""
        with self._transaction() as db:
            db.execute("DELETE FROM choice")
            for shard in shards:
                db.execute("DELETE FROM pair WHERE shard = ?", (shard,))
                db.execute("DELETE FROM shard WHERE id = ?", (shard,))


def _image_row(row: tuple[Any, ...]) -> ImageRow:
    number, name, size, mtime_ns, state, key, keypoints, facts, code, detail = row
    return ImageRow(
        number, name, size, mtime_ns, state, key or "", keypoints or 0,
        None if facts is None else _facts(json.loads(facts)), code or "", detail or "",
    )  # fmt: skip


def _facts(fields: dict[str, Any]) -> Facts:
    for name in ("size", "position"):
        if fields[name] is not None:
            fields[name] = tuple(fields[name])
    place = fields.pop("georeference", None)
    if place is not None:
        place = GeoReference(tuple(place["matrix"]), place["epsg"])
    return Facts(**fields, georeference=place)
