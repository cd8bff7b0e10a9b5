from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from matchserve.types import PatchSpec
from training.data.store.blocks import BLOCK_BYTES
from training.data.store.reader import PatchStore
from training.data.store.writer import StoreWriter
from training.errors import DataError

SIDE = 32


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of four blocks."""
    rng = np.random.default_rng(0)
    path = tmp_path / "store"
    with StoreWriter(path, PatchSpec(SIDE, 6.0), made_by="test") as writer:
        for _ in range(4):
            patches = rng.integers(0, 256, (1000, SIDE, SIDE), np.uint8)
            writer.add_classes(patches, np.full(500, 2), scene="a", images=["i"] * 1000)
    return path


def flip(path: Path, position: int) -> None:
    data = bytearray((path / "patches.npy").read_bytes())
    data[position] ^= 1
    (path / "patches.npy").write_bytes(data)


def test_a_flipped_byte_is_found_when_its_patch_is_read(store: Path) -> None:
    flip(store, 2 * BLOCK_BYTES + 12345)
    opened = PatchStore.open(store)
    opened.patches(np.array([0, 10]))
    damaged = (2 * BLOCK_BYTES + 12345) // (SIDE * SIDE)
    with pytest.raises(DataError, match=rf"patches\.npy.*{2 * BLOCK_BYTES}"):
        opened.patches(np.array([5, damaged]))


def test_every_patch_of_a_whole_store_is_read(store: Path) -> None:
    opened = PatchStore.open(store)
    everything = opened.patches(np.arange(4000))
    np.testing.assert_array_equal(everything[:, 0], np.load(store / "patches.npy"))
    np.testing.assert_array_equal(opened.patches(np.array([-1]))[0, 0], everything[-1, 0])


def test_a_patch_across_two_blocks_is_checked_in_both(store: Path) -> None:
    header = (store / "patches.npy").stat().st_size - 4000 * SIDE * SIDE
    across = (BLOCK_BYTES - header) // (SIDE * SIDE)
    flip(store, BLOCK_BYTES + 10)
    with pytest.raises(DataError):
        PatchStore.open(store).patches(np.array([across]))


def test_stores_of_earlier_versions_are_read(store: Path) -> None:
    head = json.loads((store / "store.json").read_text(encoding="utf-8"))
    del head["blocks"]
    (store / "store.json").write_text(json.dumps(head), encoding="utf-8")
    assert len(PatchStore.open(store).patches(np.array([1]))) == 1


@pytest.mark.parametrize(
    "blocks", [{}, {"bytes": 0, "digests": []}, {"bytes": 9, "digests": ["a"]}, 3]
)
def test_wrong_checksums_are_an_error_of_the_store(store: Path, blocks: object) -> None:
    head = json.loads((store / "store.json").read_text(encoding="utf-8"))
    head["blocks"] = blocks
    (store / "store.json").write_text(json.dumps(head), encoding="utf-8")
    with pytest.raises(DataError):
        PatchStore.open(store)
