"""Uploaded collections: files in a folder, and rows that count them against the quotas."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from matchserve.errors import (
    CollectionBusy,
    ImageExists,
    QuotaExceeded,
    UnknownCollection,
    UnknownImage,
)
from matchserve.files import open_whole
from matchserve.jobs.database import Database
from matchserve.jobs.table import wall_clock
from matchserve.limits import DEFAULT_QUOTAS, Quotas
from matchserve.sealed import raise_if_full


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """A collection: its name, number of images, and their bytes."""

    name: str
    images: int
    bytes: int


class Uploads:
    """The collections of all owners below one folder; an owner sees only its own."""

    def __init__(self, database: Database, root: Path, quotas: Quotas = DEFAULT_QUOTAS) -> None:
        self.database, self.root, self.quotas = database, root, quotas

    def folder(self, owner: str, name: str) -> Path:
        """Return the folder of a collection; `name` must be a checked name."""
        return self.root / owner / name

    def create(self, owner: str, name: str) -> bool:
        """Create a collection; return False if it exists.

        Raises:
            QuotaExceeded: the owner has too many.
        """
        with self.database.write() as db:
            if _exists(db, owner, name):
                return False
            (count,) = db.execute(
                "SELECT count(*) FROM collection WHERE owner = ?", (owner,)
            ).fetchone()
            _check(count + 1, self.quotas.collections, "collections")
            db.execute("INSERT INTO collection VALUES (?, ?, ?)", (owner, name, wall_clock()))
            (self.folder(owner, name) / "images").mkdir(parents=True, exist_ok=True)
        return True

    def collections(self, owner: str) -> list[CollectionInfo]:
        """Return the collections of an owner by name."""
        with self.database.read() as db:
            rows = db.execute(
                "SELECT c.name, count(u.name), ifnull(sum(u.bytes), 0) FROM collection AS c "
                "LEFT JOIN upload AS u ON u.owner = c.owner AND u.collection = c.name "
                "WHERE c.owner = ? GROUP BY c.name ORDER BY c.name",
                (owner,),
            ).fetchall()
        return [CollectionInfo(*row) for row in rows]

    def info(self, owner: str, name: str) -> CollectionInfo:
        """Return one collection.

        Raises:
            UnknownCollection: the owner has none of that name.
        """
        found = [info for info in self.collections(owner) if info.name == name]
        if not found:
            raise UnknownCollection("there is no collection of that name")
        return found[0]

    def images(self, owner: str, name: str, after: str = "", limit: int = 1000) -> list[str]:
        """Return names of images in order, from the first one after `after`."""
        with self.database.read() as db:
            rows = db.execute(
                "SELECT name FROM upload WHERE owner = ? AND collection = ? AND name > ? "
                "ORDER BY name LIMIT ?",
                (owner, name, after, limit),
            ).fetchall()
        return [row["name"] for row in rows]

    def put(self, owner: str, name: str, image: str, data: bytes, *, replace: bool) -> bool:
        """Store an image under a checked name; return False if the same bytes are there.

        Raises:
            UnknownCollection: the owner has no such collection.
            ImageExists: other bytes are there, and they are not to be replaced.
            QuotaExceeded: the owner has too many images or bytes.
            StorageFull: there is no room on the disk.
        """
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.folder(owner, name) / "images" / image
        key = (owner, name, image)
        with self.database.write() as db:
            if not _exists(db, owner, name):
                raise UnknownCollection("there is no collection of that name")
            known = db.execute(
                "SELECT bytes, sha256 FROM upload "
                "WHERE owner = ? AND collection = ? AND name = ?", key,
            ).fetchone()  # fmt: skip
            if known is not None and known["sha256"] == sha256 and path.is_file():
                return False
            if known is not None and known["sha256"] != sha256 and not replace:
                raise ImageExists(f"another image named {image!r} was uploaded before")
            self._check_quota(db, owner, len(data), known)
            db.execute(
                "INSERT OR REPLACE INTO upload VALUES (?, ?, ?, ?, ?)", (*key, len(data), sha256)
            )
            # The file first: a row without its file would be a lost upload.
            _write(path, data)
        return True

    def remove_image(self, owner: str, name: str, image: str) -> None:
        """Remove an image.

        Raises:
            UnknownImage: there is none of that name.
        """
        with self.database.write() as db:
            found = db.execute(
                "DELETE FROM upload WHERE owner = ? AND collection = ? AND name = ?",
                (owner, name, image),
            )
            if not found.rowcount:
                raise UnknownImage("there is no image of that name")
            images = self.folder(owner, name) / "images"
            (images / image).unlink(missing_ok=True)
            _remove_empty_folders((images / image).parent, images)

    def remove(self, owner: str, name: str) -> None:
        """Remove a collection with all its images and matches.

        Raises:
            UnknownCollection: the owner has none of that name.
            CollectionBusy: a job is using it.
        """
        with self.database.write() as db:
            if not _exists(db, owner, name):
                raise UnknownCollection("there is no collection of that name")
            busy = db.execute(
                "SELECT id FROM job WHERE owner = ? AND target = ? "
                "AND state IN ('queued', 'running')", (owner, f"collection:{name}"),
            ).fetchone()  # fmt: skip
            if busy is not None:
                raise CollectionBusy(f"job {busy['id']} is using the collection; cancel it first")
            db.execute("DELETE FROM collection WHERE owner = ? AND name = ?", (owner, name))
            shutil.rmtree(self.folder(owner, name), ignore_errors=True)

    def _check_quota(
        self, db: sqlite3.Connection, owner: str, size: int, known: sqlite3.Row | None
    ) -> None:
        count, total = db.execute(
            "SELECT count(*), ifnull(sum(bytes), 0) FROM upload WHERE owner = ?", (owner,)
        ).fetchone()
        _check(count + (known is None), self.quotas.images, "images")
        before = 0 if known is None else known["bytes"]
        _check(total + size - before, self.quotas.bytes, "bytes of images")


def _exists(db: sqlite3.Connection, owner: str, name: str) -> bool:
    row = db.execute("SELECT 1 FROM collection WHERE owner = ? AND name = ?", (owner, name))
    return row.fetchone() is not None


def _check(value: int, limit: int, what: str) -> None:
    if value > limit:
        raise QuotaExceeded(f"{value} {what}, at most {limit} are allowed",
                            limit=limit, value=value)  # fmt: skip


def _remove_empty_folders(folder: Path, root: Path) -> None:
    """Remove the folders of a removed image: they are in no quota, and their names are taken."""
    with contextlib.suppress(OSError):  # not empty
        while folder != root:
            folder.rmdir()
            folder = folder.parent


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_whole(path) as file:
            file.write(data)
    except FileExistsError as error:
        raise ImageExists(f"a part of {path.name!r} is the name of another image") from error
    except (NotADirectoryError, IsADirectoryError) as error:
        raise ImageExists(f"{path.name!r} is the name of another image or folder") from error
    except OSError as error:
        raise_if_full(error, path)
        raise
