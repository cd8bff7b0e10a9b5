"""HPatches, on a small copy in the exact on-disk format."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as Pillow

from tests.unit.training.public_sets import HPATCHES_LENGTHS as LENGTHS
from tests.unit.training.public_sets import write_hpatches
from training.data.public.hpatches import (
    STRIPS,
    HPatches,
    draw_verification,
    import_hpatches,
    import_split,
)
from training.data.store.reader import PatchStore
from training.errors import DataError


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return write_hpatches(tmp_path)


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


def test_the_layout_of_the_benchmark_is_found(tmp_path: Path, release: Path) -> None:
    """hpatches-benchmark/data/hpatches-release, and tasks/ at the top."""
    inside = tmp_path / "data" / "hpatches-release"
    inside.parent.mkdir()
    release.rename(inside)
    assert HPatches.open(inside).test_sequences("a") == ["v_two", "i_one"]


def test_a_split_is_imported_as_two_stores(release: Path, tmp_path: Path) -> None:
    stores = import_split(release, tmp_path / "hpatches-a", "a")
    assert [store.name for store in stores] == ["hpatches-a-train", "hpatches-a-test"]
    train, test = (PatchStore.open(store) for store in stores)
    assert (train.scenes, test.scenes) == (("v_three",), ("i_one", "v_two"))
    whole = PatchStore.open(import_hpatches(release, tmp_path / "all"))
    view = whole.split(["v_three"])
    assert np.array_equal(train.pixels, whole.pixels[view.class_starts[0] :][: train.patch_count])
    # A second run keeps what is there.
    assert import_split(release, tmp_path / "hpatches-a", "a") == stores
    with pytest.raises(DataError, match="no train list of split 'b'"):
        import_split(release, tmp_path / "hpatches-b", "b")


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
