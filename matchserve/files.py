"""Read files, and write files and directories that are complete or absent, even after a crash."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from matchserve.errors import MissingInput
from matchserve.limits import LIBRARY_LIMITS

_SUFFIX = ".partial"


def read_file(path: Path, max_bytes: int = LIBRARY_LIMITS.max_image_bytes) -> bytes:
    """Return the first `max_bytes` + 1 bytes of a file: enough to see that it is too large.

    Raises:
        MissingInput: the file does not exist, is a directory, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise MissingInput(f"cannot read {path}: {reason}") from error


class FileTooLarge(OSError):
    """The file has more bytes than may be read."""


def read_regular_file(path: Path, max_bytes: int) -> bytes:
    """Return the contents of a regular file; a device or a pipe could be read for ever.

    Raises:
        FileTooLarge: the file has more than `max_bytes`.
        OSError: the file cannot be read, or is not a regular file.
    """
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise FileTooLarge(errno.EFBIG, f"more than {max_bytes} bytes", str(path))
    return data


@contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the `with` block ends without an error."""
    temporary = _temporary_name(path)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _flush(path.parent)


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to a temporary file, flush it to disk and rename it to `path`."""
    with open_whole(path) as file:
        file.write(data)


def write_text_whole(path: Path, text: str) -> None:
    """Write `text` in UTF-8 as `write_whole` does."""
    write_whole(path, text.encode())


class WholeDirectory:
    """A directory that is filled under a temporary name and renamed when it is complete.

        with WholeDirectory(Path("models/mine")) as temporary:
            (temporary / "card.json").write_text(text)

    If the block raises, nothing is left. Code that cannot use a `with` block calls `publish` or
    `discard` itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = _temporary_name(path)
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(parents=True)

    def publish(self) -> None:
        """Flush all files to disk and give the directory its final name.

        Raises:
            FileExistsError: something of that name exists; the temporary directory is removed.
        """
        try:
            for file in self.temporary.rglob("*"):
                _flush(file)
            # rename() silently replaces an empty directory.
            if self.path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.path))
            self.temporary.rename(self.path)
        finally:
            self.discard()
        _flush(self.path.parent)

    def discard(self) -> None:
        """Remove the temporary directory and everything in it."""
        shutil.rmtree(self.temporary, ignore_errors=True)

    def __enter__(self) -> Path:
        return self.temporary

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.publish()
        else:
            self.discard()


def remove_leftovers(directory: Path) -> None:
    """Remove the temporary files and directories of writers that were killed.

    Call it only where no other process is writing: it cannot tell a dead writer from a live one.
    """
    for leftover in directory.glob(f".*{_SUFFIX}"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}{_SUFFIX}")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
