from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from matchserve.errors import StorageDamaged
from matchserve.sealed import read_sealed, seal, unseal, write_sealed

ARRAYS = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "name": np.array("x.jpg")}


def test_arrays_survive_and_numpy_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.npz"
    assert write_sealed(path, ARRAYS) == path.stat().st_size
    for arrays in (read_sealed(path), dict(np.load(path))):
        assert np.array_equal(arrays["a"], ARRAYS["a"])
        assert str(arrays["name"]) == "x.jpg"


def test_equal_arrays_give_equal_bytes() -> None:
    assert seal(ARRAYS) == seal({k: v.copy() for k, v in ARRAYS.items()})


def test_every_truncation_and_every_flipped_byte_is_noticed() -> None:
    data = seal(ARRAYS)
    for length in range(len(data)):
        with pytest.raises(StorageDamaged):
            unseal(data[:length], "a")
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        if place in (len(data) - 66, len(data) - 65):
            continue  # the length of the comment: not needed to read the file
        with pytest.raises(StorageDamaged):
            unseal(bytes(flipped), "a")


def test_an_absent_file_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(StorageDamaged, match=r"a\.npz"):
        read_sealed(tmp_path / "a.npz")


def test_objects_are_refused() -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        seal({"a": np.array([object()])})
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(2))
    with pytest.raises(StorageDamaged):
        unseal(buffer.getvalue(), "an npz without a checksum")


def sealed_archive(content: bytes) -> bytes:
    """Return a compressed archive with a checksum that fits, as anybody can make it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", content)
    body = buffer.getvalue()[:-2]
    return body + (64).to_bytes(2, "little") + hashlib.sha256(body).hexdigest().encode()


def test_a_checksum_does_not_make_a_bomb_good() -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (25_000_000,)}
    )
    data = sealed_archive(header.getvalue() + bytes(100_000_000))
    assert len(data) < 200_000
    with pytest.raises(StorageDamaged, match="compressed"):
        unseal(data, "bomb")


@pytest.mark.parametrize("content", [b"", b"junk" * 100, b"\x93NUMPY\x01\x00\xff\xff"])
def test_a_checksum_does_not_make_junk_an_array(content: bytes) -> None:
    with pytest.raises(StorageDamaged):
        unseal(sealed_archive(content * 50), "junk")
