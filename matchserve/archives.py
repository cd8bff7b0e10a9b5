"""Read npz archives from outside: bounded before anything of them is unpacked."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import InvalidParameter, PayloadTooLarge

MAX_ARRAYS = 32
# A member's entry in the directory: 46 bytes, a name, and extra fields of some writers.
_MAX_DIRECTORY_BYTES = 512 * MAX_ARRAYS
_END_BYTES, _LOCATOR_BYTES = 22, 20

ARCHIVE_ERRORS: tuple[type[Exception], ...] = (
    *(ValueError, TypeError, KeyError, OSError, EOFError, NotImplementedError, RuntimeError),
    *(struct.error, zlib.error, zipfile.BadZipFile, MemoryError, SyntaxError),
)
"""What zlib, zipfile and NumPy raise for damaged archives and arrays."""


def read_npz(data: bytes, max_bytes: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz archive by name.

    Raises:
        PayloadTooLarge: the arrays would have more than `max_bytes`; 400 kB can unpack to 400 MB.
        InvalidParameter: the bytes are not an npz archive of a few plain arrays.
    """
    _check_directory(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        if unpacked > max_bytes:
            raise PayloadTooLarge(
                f"the archive unpacks to {unpacked} bytes, at most {max_bytes} are allowed",
                limit=max_bytes,
                value=unpacked,
            )
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return members_of(arrays)
    except (InvalidParameter, PayloadTooLarge):
        raise
    except ARCHIVE_ERRORS as error:
        raise InvalidParameter("not an npz archive of plain arrays") from error


def members_of(arrays: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of an open archive by name.

    Raises:
        ValueError: a member is not an array; NumPy returns its bytes.
    """
    found = {name: arrays[name] for name in arrays.files}
    if not all(isinstance(value, np.ndarray) for value in found.values()):
        raise ValueError("a member of the archive is not an array")
    return found


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array of an npy file.

    Raises:
        InvalidParameter: the file cannot be read, or is not a complete npy file of plain values.
    """
    try:
        with path.open("rb") as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except ARCHIVE_ERRORS as error:
        raise InvalidParameter(f"{path}: not a complete .npy file: {error}") from error


def _check_directory(data: bytes) -> None:
    """Refuse a directory of many members: zipfile makes an object of each."""
    end = data[-_END_BYTES:]
    locator = data[-_END_BYTES - _LOCATOR_BYTES : -_END_BYTES]
    if len(end) < _END_BYTES or end[:4] != b"PK\5\6" or locator[:4] == b"PK\6\7":
        raise InvalidParameter("not an npz archive of plain arrays")
    count, size = struct.unpack_from("<HI", end, 10)
    if count > MAX_ARRAYS or size > _MAX_DIRECTORY_BYTES:
        raise InvalidParameter(f"the archive holds more than {MAX_ARRAYS} arrays")
