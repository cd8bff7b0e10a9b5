"""Checksums of the blocks of a patch file, which are checked when a block is first read.

A store is read at random places for hours; one damaged byte would train silently. Reading the whole
file first would take minutes, so each block is checked once, when a batch needs it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.errors import DataError

BLOCK_BYTES = 1 << 20
_DIGEST_BYTES = 8


class BlockChecksums:
    """The checksums of one file, and which of its blocks were found to be whole."""

    def __init__(self, path: Path, block_bytes: int, digests: list[str]) -> None:
        self.path = path
        self.block_bytes = block_bytes
        self._digests = digests
        self._is_checked = np.zeros(len(digests), np.bool_)

    @classmethod
    def from_json(cls, path: Path, head: Mapping[str, Any]) -> BlockChecksums | None:
        """Return the checksums in a store's head, or None for a store of an earlier version.

        Raises:
            DataError: the checksums are not as expected.
        """
        blocks = head.get("blocks")
        if blocks is None:
            return None
        try:
            size, digests = int(blocks["bytes"]), [str(digest) for digest in blocks["digests"]]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path.parent}: expected 'blocks' with bytes and digests") from error
        if size < 1 or len(digests) != -(-path.stat().st_size // size):
            raise DataError(f"{path}: expected one checksum for each block of {size} bytes")
        return cls(path, size, digests)

    def check(self, first_bytes: NDArray[np.int64], length: int) -> None:
        """Check the blocks that hold `length` bytes from each of `first_bytes`.

        Raises:
            DataError: a block differs from what was written; the message names its place.
        """
        first = first_bytes // self.block_bytes
        last = (first_bytes + length - 1) // self.block_bytes
        blocks = np.unique(np.concatenate([first, last]))
        unchecked = blocks[~self._is_checked[blocks]].tolist()
        if not unchecked:
            return
        with self.path.open("rb") as file:
            for block in unchecked:
                file.seek(block * self.block_bytes)
                if _digest(file.read(self.block_bytes)) != self._digests[block]:
                    start = block * self.block_bytes
                    raise DataError(
                        f"{self.path}: damaged between bytes {start} and "
                        f"{start + self.block_bytes}; make the store again"
                    )
                self._is_checked[block] = True


def block_checksums(path: Path) -> dict[str, Any]:
    """Return the checksums of a file's blocks as plain JSON values."""
    digests = []
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digests.append(_digest(block))
    return {"bytes": BLOCK_BYTES, "digests": digests}


def _digest(block: bytes) -> str:
    return hashlib.blake2b(block, digest_size=_DIGEST_BYTES).hexdigest()
