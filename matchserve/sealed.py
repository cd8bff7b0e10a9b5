"""npz archives with a checksum of the whole file, so that no damage goes unnoticed.

The checksum is the comment of the zip archive: `numpy.load` reads these files like any other npz.
Equal arrays give equal bytes.
"""

from __future__ import annotations

import errno
import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.archives import ARCHIVE_ERRORS, members_of
from matchserve.errors import StorageDamaged, StorageFull
from matchserve.files import open_whole
from matchserve.objects import ObjectPath, Place

_COMMENT_BYTES = 64  # SHA-256 in hexadecimal
# RLIMIT_FSIZE and quotas stop a write as a full disk does.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_sealed(path: Place, arrays: dict[str, Any]) -> int:
    """Write arrays to `path`, completely or not at all; return the number of bytes.

    Raises:
        StorageFull: there is no room on the disk.
    """
    data = seal(arrays)
    if isinstance(path, ObjectPath):
        path.write_bytes(data)
        return len(data)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_whole(path) as file:
            file.write(data)
    except OSError as error:
        raise_if_full(error, path)
        raise
    return len(data)


def read_sealed(path: Place) -> dict[str, NDArray[Any]]:
    """Read all arrays of a file of `write_sealed`.

    Raises:
        StorageDamaged: the file is absent, cut off or changed.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageDamaged(f"cannot read {path}: {error.strerror}") from error
    return unseal(data, path)


def seal(arrays: dict[str, Any]) -> bytes:
    """Encode arrays as an npz archive whose comment is its checksum."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            # The date of `ZipInfo` is fixed: equal arrays must give equal bytes.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    body = buffer.getvalue()[:-2]  # without the length of the (empty) comment
    checksum = hashlib.sha256(body).hexdigest().encode()
    return body + _COMMENT_BYTES.to_bytes(2, "little") + checksum


def unseal(data: bytes, name: object) -> dict[str, NDArray[Any]]:
    """Decode what `seal` returned; `name` is for the error message.

    Raises:
        StorageDamaged: the bytes are cut off or changed, or no such archive: a checksum can be made
            for any bytes, e.g. for 4 MB that unpack to gigabytes.
    """
    body, comment = data[: -2 - _COMMENT_BYTES], data[-_COMMENT_BYTES:]
    if hashlib.sha256(body).hexdigest().encode() != comment:
        raise StorageDamaged(f"{name} is damaged: its checksum does not fit")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            if sum(member.file_size for member in packed.infolist()) > len(data):
                raise StorageDamaged(f"{name} is compressed, which no such file is")
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return members_of(archive)
    except ARCHIVE_ERRORS as error:
        raise StorageDamaged(f"{name} is not an archive of arrays") from error


def raise_if_full(error: OSError, path: Path) -> None:
    """Raise `StorageFull` if `error` means that there is no room.

    Raises:
        StorageFull: there is no room on the disk.
    """
    if error.errno in _FULL:
        raise StorageFull(f"cannot write {path}: {error.strerror}") from error
