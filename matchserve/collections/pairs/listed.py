"""Pairs `list:FILE`: a text file with two names on each line, as hloc and COLMAP write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matchserve.collections.pairs.images import PairImage, PairRows, Retriever, as_rows
from matchserve.errors import InvalidParameter
from matchserve.files import read_file


def listed(images: Sequence[PairImage], arguments: str, _retriever: Retriever) -> PairRows:
    """Return the pairs of a file; empty lines and lines that start with # are skipped.

    Raises:
        MissingInput: the file cannot be read.
        InvalidParameter: a line does not contain two names of the collection.
    """
    ids = {image.name: image.id for image in images}
    pairs = []
    text = read_file(Path(arguments)).decode("utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        names = _two_names(line.strip(), ids)
        if names is None:
            raise InvalidParameter(
                f"{arguments}, line {number}: {line.strip()[:200]!r} is not two images of the "
                "collection"
            )
        pairs.append((ids[names[0]], ids[names[1]]))
    return as_rows(pairs)


def _two_names(line: str, ids: Mapping[str, int]) -> tuple[str, str] | None:
    """Split a line between two known names, which may contain spaces."""
    for place in (i for i, letter in enumerate(line) if letter.isspace()):
        first, second = line[:place], line[place:].strip()
        if first in ids and second in ids:
            return first, second
    return None
