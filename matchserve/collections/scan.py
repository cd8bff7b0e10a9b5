"""Find the images of a folder, in natural order: `IMG_9` before `IMG_10`."""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

from matchserve.errors import MissingInput

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff"}


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One image file; `name` is relative to the folder, with `/`, in Unicode's form NFC."""

    name: str
    path: Path
    bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Scan:
    """The images of a folder, and the files that cannot be used, with the reason."""

    images: list[ImageFile] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def scan(folder: Path, *, exclude: Path | None = None) -> Scan:
    """Find all images below `folder` except those below `exclude` and hidden ones.

    Links to files outside of the folder and names with control characters are refused: the
    formats that we export separate names by line ends.

    Raises:
        MissingInput: the folder does not exist or cannot be read.
    """
    root = folder.resolve()
    if not root.is_dir():
        raise MissingInput(f"{folder} is not a folder")
    skipped = exclude.resolve() if exclude is not None else None
    found = Scan()
    seen: set[str] = set()
    for path in sorted(_files(root, skipped), key=lambda p: natural_key(str(p.relative_to(root)))):
        name = unicodedata.normalize("NFC", path.relative_to(root).as_posix())
        reason = _refusal(path, root, name, seen)
        if reason:
            found.refused[name] = reason
            continue
        seen.add(name)
        status = path.stat()
        found.images.append(ImageFile(name, path, status.st_size, status.st_mtime_ns))
    return found


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key by which digits compare as numbers and letters without case."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p.casefold()) for p in parts] + [
        (2, 0, name)
    ]


def _files(root: Path, skipped: Path | None) -> list[Path]:
    def fail(error: OSError) -> None:
        raise MissingInput(f"cannot read {error.filename}: {error.strerror}") from error

    found = []
    for directory, folders, files in os.walk(root, onerror=fail):
        here = Path(directory)
        folders[:] = [f for f in folders if not f.startswith(".") and here / f != skipped]
        found += [
            here / f for f in files if not f.startswith(".") and Path(f).suffix.lower() in SUFFIXES
        ]
    return found


def _refusal(path: Path, root: Path, name: str, seen: set[str]) -> str:
    """Return why a file is not used, or an empty string."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return "the name is not valid UTF-8"
    if any(unicodedata.category(letter) == "Cc" for letter in name):
        return "the name has control characters"
    if name in seen:
        return "another file has the same name in Unicode form NFC"
    if not path.is_file():
        return "not a regular file"
    if path.is_symlink() and not path.resolve().is_relative_to(root):
        return "a link to a file outside of the folder"
    return ""
