"""Names that clients choose: of collections, of images in them, and of folders to read.

Nothing else joins such a name to a path.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from matchserve.errors import InvalidParameter, UnknownCollection, UnknownSource

COLLECTION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
JOB_PATTERN = r"^[0-9a-f]{14}-[0-9a-f]{20}$"
RESULT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")

MAX_NAME_BYTES = 1000
MAX_PART_BYTES = 200
MAX_PARTS = 8
_FORBIDDEN = set('\\:*?"<>|')
"""Characters that other systems do not allow in file names."""


def checked_collection_name(name: str) -> str:
    """Return the name of a collection.

    Raises:
        UnknownCollection: no collection can have this name.
    """
    if not re.fullmatch(COLLECTION_PATTERN, name):
        raise UnknownCollection("no collection can have this name")
    return name


def checked_image_name(text: str) -> str:
    """Return the name of an image, a relative path with `/`, in Unicode's form NFC.

    Raises:
        InvalidParameter: the name cannot be that of a file on every system.
    """
    name = unicodedata.normalize("NFC", text)
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidParameter("the name of an image must be valid Unicode") from error
    parts = name.split("/")
    if size > MAX_NAME_BYTES or len(parts) > MAX_PARTS:
        raise InvalidParameter(
            f"the name of an image has at most {MAX_NAME_BYTES} bytes and {MAX_PARTS} parts",
            limit=MAX_NAME_BYTES,
            value=size,
        )
    for part in parts:
        _check_part(part)
    if not name.lower().endswith(SUFFIXES):
        raise InvalidParameter(f"the name of an image ends with {', '.join(SUFFIXES)}")
    return name


def _check_part(part: str) -> None:
    if not part or part.startswith((".", " ")) or part.endswith((".", " ")):
        raise InvalidParameter("a part of a name is empty, or begins or ends with a dot or space")
    if len(part.encode()) > MAX_PART_BYTES:
        raise InvalidParameter(f"a part of a name has more than {MAX_PART_BYTES} bytes")
    # Categories C: control characters, formatting, surrogates; Zl and Zp: line ends.
    if any(unicodedata.category(c)[0] == "C" or unicodedata.category(c) in ("Zl", "Zp")
           or c in _FORBIDDEN for c in part):  # fmt: skip
        raise InvalidParameter("the name of an image has a character that file names cannot have")


def checked_source(text: str, sources: Sequence[Path]) -> Path:
    """Return a folder that a job may read: one of `sources` or a folder below.

    Raises:
        UnknownSource: it is not below one of the sources, or does not exist; the message does not
            say which.
    """
    refused = UnknownSource("there is no such folder among the sources of this service")
    if "\0" in text or not text.startswith("/"):
        raise refused
    try:
        found = Path(text).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise refused from error
    if not found.is_dir() or not any(found.is_relative_to(root.resolve()) for root in sources):
        raise refused
    return found
