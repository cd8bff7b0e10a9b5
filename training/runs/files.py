"""Files that are there whole or not at all, also when the process is killed half-way."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write `path` under a temporary name, flush it to disk and rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_text_whole(path: Path, text: str) -> None:
    """Write `text` in UTF-8 as `write_whole` does."""
    write_whole(path, text.encode())


def sweep(directory: Path) -> None:
    """Remove what interrupted writes left; for the one process that writes there."""
    for stray in directory.glob(".*.partial"):
        if stray.is_file():
            stray.unlink(missing_ok=True)
