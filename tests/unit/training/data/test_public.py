"""PhotoTour and HPatches, on small copies in the exact on-disk format."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as Pillow

from training.data.public.hpatches import (
    STRIPS,
    HPatches,
    draw_verification,
    import_hpatches,
)
from training.data.public.phototour import (
    PAIR_FILE,
    PhotoTour,
    import_phototour,
    reduced,
)
from training.data.store.reader import PatchStore
from training.errors import DataError

PATCHES = 300  # a full sheet and a padded one
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (PATCHES, 64, 64)).astype(np.uint8)
POINTS = np.sort(RNG.integers(0, 110, PATCHES))


@pytest.fixture
def tour(tmp_path: Path) -> Path:
    folder = tmp_path / "liberty"
    folder.mkdir()
    for number in range(2):
        sheet = np.zeros((1024, 1024), np.uint8)
        for index, patch in enumerate(PIXELS[number * 256 : (number + 1) * 256]):
            row, column = divmod(index, 16)
            sheet[row * 64 : row * 64 + 64, column * 64 : column * 64 + 64] = patch
        Pillow.fromarray(sheet).save(folder / f"patches{number:04d}.bmp")
    (folder / "info.txt").write_text("".join(f"{p} 0\n" for p in POINTS))
    (folder / "interest.txt").write_text(
        "".join(f"{i % 7} {i}.5 {2 * i} 0.25 {i % 4}\n" for i in range(PATCHES))
    )
    rows = []
    for index in range(100):
        one, other = index, (index * 37 + 1) % PATCHES
        rows.append(f"{one} {POINTS[one]} 0 {other} {POINTS[other]} 0\n")
    rows += [f"{i} {POINTS[i]} 0 {i} {POINTS[i]} 0\n" for i in range(20)]
    (folder / PAIR_FILE).write_text("".join(rows))
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


def test_phototour_pairs_are_labelled_by_point(tour: Path) -> None:
    pairs = PhotoTour.open(tour).pairs()
    assert len(pairs.left) == 120
    assert np.array_equal(pairs.is_match, POINTS[pairs.left] == POINTS[pairs.right])
    assert pairs.is_match[100:].all()


def test_phototour_import_groups_points_and_keeps_the_interest_points(
    tour: Path, tmp_path: Path
) -> None:
    store = PatchStore.open(import_phototour(tour, tmp_path / "store"))
    store.verify()
    assert len(store) == len(np.unique(POINTS))
    assert store.scenes == ("liberty",)
    order = np.argsort(POINTS, kind="stable")
    assert np.array_equal(store.pixels[5], reduced(PIXELS[order[5] : order[5] + 1], 32)[0])
    index = order[5]
    assert store.keypoints[5].tolist() == [index + 0.5, 2 * index, 2.0 ** (index % 4), 0.25]
    assert not (tmp_path / "store.import").exists()


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
    with pytest.raises(DataError, match="line 2 names a patch beyond 300"):
        PhotoTour.open(tour).pairs()


LENGTHS = {"i_one": 6, "v_two": 9, "v_three": 5}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return write_release(tmp_path)


def write_release(base: Path) -> Path:
    folder = base / "hpatches-release"
    rng = np.random.default_rng(1)
    for name, count in LENGTHS.items():
        (folder / name).mkdir(parents=True)
        for strip in STRIPS:
            pixels = rng.integers(0, 256, (65 * count, 65)).astype(np.uint8)
            Pillow.fromarray(pixels).save(folder / name / f"{strip}.png")
    tasks = base / "tasks"
    (tasks / "splits").mkdir(parents=True)
    splits = {"a": {"test": ["v_two", "i_one"], "train": ["v_three"], "name": "a"}}
    (tasks / "splits" / "splits.json").write_text(json.dumps(splits))
    (tasks / "retr_queries_split-a.csv").write_text("s,idx\nv_two,3\ni_one,0\n")
    (tasks / "retr_distractors_split-a.csv").write_text(
        "s,idx\nv_two,0\ni_one,1\nv_two,8\ni_one,5\n"
    )
    return folder


def test_hpatches_strips_are_columns_of_patches(release: Path) -> None:
    opened = HPatches.open(release)
    assert opened.lengths == LENGTHS
    strip = opened.strip("v_two", "h3")
    raw = np.asarray(Pillow.open(release / "v_two" / "h3.png"))
    assert np.array_equal(strip[4], raw[4 * 65 : 5 * 65])
    small = opened.strip("v_two", "h3", 32)
    assert np.array_equal(small[4], cv2.resize(strip[4], (32, 32)))


def test_hpatches_import_makes_classes_of_sixteen(release: Path, tmp_path: Path) -> None:
    store = PatchStore.open(import_hpatches(release, tmp_path / "store"))
    store.verify()
    assert len(store) == sum(LENGTHS.values())
    assert (store.class_sizes == 16).all()
    assert store.scenes == ("i_one", "v_three", "v_two")
    opened = HPatches.open(release)
    view = store.split(["v_two"])
    start = view.class_starts[4]
    assert np.array_equal(
        store.pixels[start + STRIPS.index("h3")], opened.strip("v_two", "h3", 32)[4]
    )
    assert store.images[store.sources[start + STRIPS.index("h3")]] == "v_two/h3"


def test_verification_lists_are_drawn_as_the_authors_drew_them() -> None:
    """The documented order of draws from NumPy's old generator, written out plainly."""
    names, lengths, rows = ["v_two", "i_one"], [9, 6], 200
    drawn = draw_verification(names, lengths, rows)
    np.random.seed(42)  # noqa: NPY002  the benchmark's own generator
    sequence = np.random.choice(names, rows)  # noqa: NPY002
    size = dict(zip(names, lengths, strict=True))
    index = [np.random.choice(np.arange(size[s]), 2, replace=False) for s in sequence]  # noqa: NPY002
    image = [np.random.choice(np.arange(5), 2, replace=False) for _ in range(rows)]  # noqa: NPY002
    other = np.random.choice(names, rows)  # noqa: NPY002
    far = [np.random.randint(size[s]) for s in other]  # noqa: NPY002
    assert [names[n] for n in drawn.sequence] == sequence.tolist()
    assert np.array_equal(np.stack([drawn.index, drawn.index_intra], 1), index)
    assert np.array_equal(np.stack([drawn.image0, drawn.image1], 1), image)
    assert [names[n] for n in drawn.sequence_inter] == other.tolist()
    assert drawn.index_inter.tolist() == far


def test_verification_lists_on_disk_are_preferred(release: Path) -> None:
    tasks = release.parent / "tasks"
    head = "s1,t1,idx1,s2,t2,idx2\n"
    (tasks / "verif_pos_split-a.csv").write_text(head + "v_two,0,3,v_two,4,3\n")
    (tasks / "verif_neg_intra_split-a.csv").write_text(head + "v_two,0,3,v_two,4,7\n")
    (tasks / "verif_neg_inter_split-a.csv").write_text(head + "v_two,0,3,i_one,4,2\n")
    lists = HPatches.open(release).verification("a")
    values = [
        lists.sequence, lists.image0, lists.image1, lists.index, lists.index_intra,
        lists.sequence_inter, lists.index_inter,
    ]  # fmt: skip
    assert [int(v[0]) for v in values] == [0, 0, 4, 3, 7, 1, 2]
    (tasks / "verif_pos_split-a.csv").write_text(head + "v_nine,0,3,v_two,4,3\n")
    with pytest.raises(DataError, match=r"verif_pos_split-a\.csv.*v_nine"):
        HPatches.open(release).verification("a")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda r: (r / "v_two" / "t5.png").unlink(), r"t5\.png: missing, damaged"),
        (
            lambda r: (r / "v_two" / "t5.png").write_bytes(
                (r / "v_two" / "t5.png").read_bytes()[:2000]
            ),
            r"t5\.png: missing, damaged or cut off at byte 2000",
        ),
        (
            lambda r: Pillow.fromarray(np.zeros((65 * 8, 65), np.uint8)).save(
                r / "v_two" / "t5.png"
            ),
            r"t5\.png: ends at patch 8, its sequence has 9",
        ),
        (
            lambda r: (r.parent / "tasks" / "splits" / "splits.json").unlink(),
            r"splits\.json: missing.*github",
        ),
    ],
)
def test_hpatches_damage_is_named(release: Path, tmp_path: Path, damage, message: str) -> None:  # type: ignore[no-untyped-def]
    damage(release)
    with pytest.raises(DataError, match=message):
        import_hpatches(release, tmp_path / "store")


def test_hpatches_unknown_splits_and_missing_lists_are_named(release: Path) -> None:
    opened = HPatches.open(release)
    with pytest.raises(DataError, match="no test list of split 'z'"):
        opened.test_sequences("z")
    (release.parent / "tasks" / "retr_queries_split-a.csv").unlink()
    with pytest.raises(DataError, match="retr_queries_split-a"):
        opened.retrieval("a")
    with pytest.raises(DataError, match="no SEQUENCE"):
        HPatches.open(release / "v_two")
