"""PhotoTour, on a small copy in the exact on-disk format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.training.public_sets import write_pair_list, write_phototour
from training.data.public.phototour import (
    PAIR_FILE,
    PhotoTour,
    import_phototour,
)
from training.data.resampling import resample
from training.data.store.pairs import read_official_pairs
from training.data.store.reader import PatchStore
from training.errors import DataError
from training.runs.validation import ValidationSet

PATCHES = 300  # a full sheet and a padded one
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (PATCHES, 64, 64)).astype(np.uint8)
POINTS = np.sort(RNG.integers(0, 110, PATCHES))


@pytest.fixture
def tour(tmp_path: Path) -> Path:
    folder = write_phototour(tmp_path / "liberty", PIXELS, POINTS)
    pairs = [(index, (index * 37 + 1) % PATCHES) for index in range(100)]
    write_pair_list(folder, POINTS, pairs + [(index, index) for index in range(20)])
    return folder


def test_phototour_patches_come_in_reading_order(tour: Path) -> None:
    opened = PhotoTour.open(tour)
    assert len(opened) == PATCHES
    assert opened.name == "liberty"
    assert np.array_equal(
        opened.patches(np.array([0, 17, 255, 256, 299]), 64), PIXELS[[0, 17, 255, 256, 299]]
    )
    mean = PIXELS[17].reshape(32, 2, 32, 2).mean(axis=(1, 3))
    assert np.abs(opened.patches(np.array([17]), 32)[0] - mean).max() <= 0.5


@pytest.mark.parametrize("size", [32, 48, 64, 65, 90])
def test_phototour_is_read_and_imported_at_any_patch_size(
    tour: Path, tmp_path: Path, size: int
) -> None:
    opened = PhotoTour.open(tour)
    chosen = np.array([3, 299])
    assert np.array_equal(opened.patches(chosen, size), resample(PIXELS[chosen], size))
    store = PatchStore.open(import_phototour(tour, tmp_path / "store", size=size))
    assert store.pixels.shape == (PATCHES, size, size)
    assert store.spec.size == size


def test_phototour_pairs_are_labelled_by_point(tour: Path) -> None:
    pairs = PhotoTour.open(tour).pairs()
    assert len(pairs.left) == 120
    assert np.array_equal(pairs.is_match, POINTS[pairs.left] == POINTS[pairs.right])
    assert pairs.is_match[100:].all()


def test_seven_columns_and_empty_lines_are_read(tour: Path, tmp_path: Path) -> None:
    expected = PhotoTour.open(tour).pairs()
    listed = tour / PAIR_FILE
    listed.write_text("".join(f"{line} 0\n" for line in listed.read_text().splitlines()) + "\n")
    for name in ("info.txt", "interest.txt"):
        (tour / name).write_text((tour / name).read_text() + "\n")
    opened = PhotoTour.open(tour)
    assert len(opened) == PATCHES
    found = opened.pairs()
    assert np.array_equal(found.left, expected.left)
    assert np.array_equal(found.right, expected.right)
    assert np.array_equal(found.is_match, expected.is_match)
    import_phototour(tour, tmp_path / "store")
    listed.write_text("0 0 0 1 0 0 0 0\n")
    with pytest.raises(DataError, match="line 1 has 8 columns, expected 6"):
        opened.pairs()


def test_phototour_import_groups_points_and_keeps_the_interest_points(
    tour: Path, tmp_path: Path
) -> None:
    store = PatchStore.open(import_phototour(tour, tmp_path / "store"))
    store.verify()
    assert len(store) == len(np.unique(POINTS))
    assert store.scenes == ("liberty",)
    order = np.argsort(POINTS, kind="stable")
    assert np.array_equal(store.pixels[5], resample(PIXELS[order[5] : order[5] + 1], 32)[0])
    index = order[5]
    assert store.keypoints[5].tolist() == [index + 0.5, 2 * index, 2.0 ** (index % 4), 0.25]
    assert not (tmp_path / "store.import").exists()


def test_the_store_keeps_the_official_pairs(tour: Path, tmp_path: Path) -> None:
    store = PatchStore.open(import_phototour(tour, tmp_path / "store", size=64))
    official, expected = read_official_pairs(store), PhotoTour.open(tour).pairs()
    assert official is not None
    assert np.array_equal(store.pixels[official.left], PIXELS[expected.left])
    assert np.array_equal(store.pixels[official.right], PIXELS[expected.right])
    assert np.array_equal(official.is_match, expected.is_match)
    drawn = ValidationSet.of(store, 10)
    assert len(drawn.left) == 120
    # A view of some classes has random pairs.
    some = store.select_classes(np.arange(len(store)) < 50)
    assert read_official_pairs(some) is None
    (tmp_path / "store" / "pairs.npy").write_bytes(b"cut")
    with pytest.raises(DataError, match=r"pairs\.npy: not a list of pairs"):
        read_official_pairs(store)


def test_a_broken_import_goes_on_where_it_stopped(
    tour: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = PhotoTour.sheet

    def breaking(self: PhotoTour, number: int) -> np.ndarray:
        read.append(number)
        if number == 1 and len(read) == 2:
            raise DataError("power cut")
        return real(self, number)

    monkeypatch.setattr(PhotoTour, "sheet", breaking)
    with pytest.raises(DataError, match="power cut"):
        import_phototour(tour, tmp_path / "store")
    assert not (tmp_path / "store").exists()
    store = PatchStore.open(import_phototour(tour, tmp_path / "store"))
    assert read == [0, 1, 1]
    assert store.patch_count == PATCHES


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "info.txt").unlink(), r"info\.txt: missing.*phototour\.cs"),
        (lambda d: (d / "info.txt").write_text("1 0\n2\n"), r"info\.txt: line 2 has 1 columns"),
        (lambda d: (d / "patches0001.bmp").unlink(), "need 2 sheets, found 1"),
        (
            lambda d: (d / "patches0001.bmp").write_bytes(
                (d / "patches0001.bmp").read_bytes()[:5000]
            ),
            r"patches0001\.bmp: damaged or cut off at byte 5000",
        ),
        (lambda d: (d / "interest.txt").write_text("1 2 3 4 5\n"), "1 rows for 300 patches"),
    ],
)
def test_phototour_damage_is_named(tour: Path, tmp_path: Path, damage, message: str) -> None:  # type: ignore[no-untyped-def]
    damage(tour)
    with pytest.raises(DataError, match=message):
        import_phototour(tour, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_phototour_pairs_beyond_the_set_are_named(tour: Path) -> None:
    (tour / PAIR_FILE).write_text("0 0 0 1 0 0\n0 0 0 300 5 0\n")
    with pytest.raises(DataError, match="pair 2 names a patch beyond 300"):
        PhotoTour.open(tour).pairs()
