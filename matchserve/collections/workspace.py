"""The folder of one collection: where each file lies, and the lock of the process that writes."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from matchserve.collections.parts import Part
from matchserve.errors import MissingInput, WorkspaceBusy
from matchserve.files import remove_leftovers
from matchserve.objects import ObjectPath, Place, is_url


@dataclass(frozen=True, slots=True)
class Workspace:
    """Paths of a workspace; each part of a run has a ledger and a lock of its own.

    With `remote`, features and matches lie in an object store; the rest is always on a local disk,
    because SQLite needs one.
    """

    root: Path
    part: Part | None = None
    remote: ObjectPath | None = None

    @property
    def ledger(self) -> Path:
        """The SQLite database of images, pairs and shards."""
        return self._own / "collection.db"

    @property
    def _own(self) -> Path:
        return self.root if self.part is None else self.root / "parts" / self.part.name

    @property
    def features(self) -> Place:
        """Place of the features, unless another store is named."""
        return (self.remote or self.root) / "features"

    @property
    def matches(self) -> Place:
        """Place of the results of shards."""
        return (self.remote or self.root) / "matches"

    @property
    def database(self) -> Path:
        """COLMAP's database."""
        return self.root / "database.db"

    @property
    def sparse(self) -> Path:
        """Folder of the 3D model in COLMAP's format."""
        return self.root / "sparse"

    def check_exists(self) -> None:
        """Check that this is the workspace of a collection.

        Raises:
            MissingInput: it is not.
        """
        if not self.ledger.is_file():
            raise MissingInput(f"{self.root} is not the workspace of a collection")

    def _tidy(self) -> None:
        """Remove the temporary files of killed processes, unless this run shares the work."""
        if self.part is None:
            features = self.root / "features"
            for folder in (self.root, self.root / "matches", *features.glob("*")):
                remove_leftovers(folder)

    @classmethod
    def at(cls, place: str | PathLike[str]) -> Workspace:
        """Return the workspace in a folder, or at an address such as `s3://bucket/flight`.

        The ledger of an address is in the folder `NAME.work` of the current directory.
        """
        text = fspath(place)
        if not is_url(text):
            return cls(Path(text))
        remote = ObjectPath(text.rstrip("/"))
        return cls(Path(f"{remote.url.rpartition('/')[2]}.work"), remote=remote)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working here, and remove what killed ones left.

        Raises:
            WorkspaceBusy: another process is working in this workspace.
            MissingInput: the folder cannot be created.
        """
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            file = (self._own / "lock").open("wb")
        except OSError as error:
            raise MissingInput(f"cannot write to {self.root}: {error.strerror}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise WorkspaceBusy(f"another process is working in {self._own}") from error
            self._tidy()
            yield
            self._tidy()  # what workers left that were killed during this run
