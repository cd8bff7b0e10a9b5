"""Runs on a generated scene: resume, changes of the folder, damaged files."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from matchserve.collections.collection import Collection
from matchserve.collections.ledger import Ledger
from matchserve.collections.progress import Step
from matchserve.errors import (
    InvalidParameter,
    MissingInput,
    StorageDamaged,
    WorkspaceBusy,
    WorkspaceMismatch,
)
from matchserve.matcher import Matcher
from tests.unit.matchserve.collections.conftest import OPTIONS


def run(collection: Collection, pairs: str = "auto") -> list[Step]:
    return list(collection.match(pairs, workers=1))


def digests(workspace: Path) -> dict[str, str]:
    files = sorted((workspace / "matches").glob("*.npz"))
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def test_all_pairs_are_matched_as_the_matcher_does(matched: Collection, photos: Path) -> None:
    results = list(matched.results())
    assert len(results) == 15
    name0, name1, stored = next(r for r in results if {"0000.png", "0001.png"} == {r[0], r[1]})
    direct = Matcher("rootsift").match(photos / name0, photos / name1, OPTIONS)
    # Descriptors are stored with 16 bits, so a few matches may differ.
    assert len(stored.rows) == pytest.approx(len(direct.matches), rel=0.02)
    assert stored.inliers.sum() == pytest.approx(direct.inlier_count, rel=0.1)
    assert stored.same_scene is not None
    assert stored.same_scene > 0.9
    assert matched.result(name0, name1).rows.tolist() == stored.rows.tolist()


def test_progress_covers_every_stage(photos: Path, tmp_path: Path) -> None:
    steps = run(Collection(tmp_path / "w", images=photos, model="sift", options=OPTIONS))
    assert [s.stage for s in steps if s.done == s.total] == ["describe", "pair", "match"]
    assert all(s.done <= s.total for s in steps)


def test_a_second_run_does_nothing(matched: Collection) -> None:
    before = digests(matched.workspace.root)
    steps = run(matched)
    assert (matched.counts.described, matched.counts.matched) == (0, 0)
    assert digests(matched.workspace.root) == before
    assert [s.total for s in steps if s.stage == "match"] == [15]


def test_a_stopped_run_continues_to_the_same_files(
    photos: Path, matched_once: Path, tmp_path: Path
) -> None:
    """Stop after every step of progress in turn: the result is that of an unbroken run."""
    is_over, rounds = False, 0
    while not is_over:
        collection = Collection(
            tmp_path / "stopped", images=photos, model="rootsift", options=OPTIONS
        )
        steps = collection.match(workers=1)
        taken = list(itertools.islice(steps, rounds + 2))
        is_over = len(taken) < rounds + 2
        assert isinstance(steps, Generator)
        steps.close()  # as a kill between two steps
        rounds += 1
    assert rounds >= 5
    assert digests(tmp_path / "stopped") == digests(matched_once)


def test_the_files_do_not_depend_on_the_number_of_workers(
    photos: Path, matched_once: Path, tmp_path: Path
) -> None:
    collection = Collection(tmp_path / "w", images=photos, model="rootsift", options=OPTIONS)
    list(collection.match(workers=2))
    assert collection.counts.described == 6
    assert digests(tmp_path / "w") == digests(matched_once)


def test_a_new_image_is_matched_with_the_others(matched: Collection, photos: Path) -> None:
    (photos / "0005.png").rename(photos / "new.png")  # same content under another name
    run(matched)
    assert matched.counts.described == 0
    assert len(matched.images()) == 6
    names = {name for a, b, _ in matched.results() for name in (a, b)}
    assert "new.png" in names
    assert "0005.png" not in names
    assert len(matched.pairs()) == 15


def test_only_pairs_of_a_changed_image_are_matched_again(matched: Collection, photos: Path) -> None:
    shutil.copy(photos / "0000.png", photos / "0003.png")
    run(matched)
    assert matched.counts.described == 0  # its content is known
    assert matched.counts.matched == 5
    assert len(list(matched.results())) == 15


def test_a_vanished_image_takes_its_pairs_along(matched: Collection, photos: Path) -> None:
    (photos / "0002.png").unlink()
    run(matched)
    assert matched.counts.matched == 0
    assert len(list(matched.results())) == 10
    assert len(matched.images()) == 5


def test_a_damaged_image_costs_only_itself(photos: Path, tmp_path: Path) -> None:
    (photos / "bad.jpg").write_bytes(b"not an image")
    (photos / "empty.png").write_bytes(b"")
    collection = Collection(tmp_path / "w", images=photos, model="sift", options=OPTIONS)
    run(collection)
    refused = {row.name: row.code for row in collection.images() if row.state == "refused"}
    assert refused == {"bad.jpg": "unsupported_format", "empty.png": "empty_image"}
    assert len(list(collection.results())) == 15
    run(collection)
    assert collection.counts.refused == 2


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_a_damaged_feature_file_is_made_again(matched: Collection, damage: str) -> None:
    """Features of one image are damaged, and the matches are lost: all is made again."""
    before = digests(matched.workspace.root)
    row = matched.images()[0]
    path = matched.workspace.root / "features" / row.feature_key[:2] / f"{row.feature_key}.npz"
    _damage(path, damage)
    shutil.rmtree(matched.workspace.root / "matches")
    from matchserve.collections import work

    work._cache.cache_clear()
    run(matched)
    assert matched.counts.described + matched.counts.remade == 1
    assert digests(matched.workspace.root) == before


def test_damaged_features_are_made_again_when_they_are_read(matched: Collection) -> None:
    from matchserve.collections import work

    row = matched.images()[0]
    path = matched.workspace.root / "features" / row.feature_key[:2] / f"{row.feature_key}.npz"
    before = path.read_bytes()
    _damage(path, "flip")
    work._cache.cache_clear()
    assert len(matched.features(row)) == row.keypoints
    assert path.read_bytes() == before


@pytest.mark.parametrize("sixteenth", range(16))
def test_a_damaged_result_is_noticed_and_made_again(matched: Collection, sixteenth: int) -> None:
    before = digests(matched.workspace.root)
    path = sorted((matched.workspace.root / "matches").glob("*.npz"))[0]
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * sixteenth // 16])
    with pytest.raises(StorageDamaged, match="collection match"):
        list(matched.results())
    run(matched)
    assert matched.counts.matched > 0
    assert digests(matched.workspace.root) == before
    assert len(list(matched.results())) == 15


def test_a_lost_ledger_is_made_again_without_work(matched: Collection) -> None:
    before = digests(matched.workspace.root)
    for file in matched.workspace.root.glob("collection.db*"):
        file.unlink()
    run(matched)
    assert (matched.counts.described, matched.counts.matched) == (0, 0)
    assert digests(matched.workspace.root) == before
    assert len(list(matched.results())) == 15


def test_a_damaged_ledger_is_an_error_that_names_it(matched: Collection) -> None:
    for file in matched.workspace.root.glob("collection.db*"):
        file.write_bytes(b"this is not a database at all" * 100)
    with pytest.raises(StorageDamaged, match=r"collection\.db"):
        run(matched)


def test_other_pairs_replace_the_first_ones(matched: Collection) -> None:
    run(matched, "sequential:1")
    assert matched.counts.matched == 0
    assert len(list(matched.results())) == 5
    run(matched, "exhaustive")
    assert len(list(matched.results())) == 15


def test_other_options_are_refused_by_name(matched: Collection, photos: Path) -> None:
    other = replace(OPTIONS, max_side=300)
    collection = Collection(matched.workspace.root, images=photos, model="rootsift", options=other)
    with pytest.raises(WorkspaceMismatch, match="max_side 2048, not 300"):
        run(collection)
    collection = Collection(matched.workspace.root, images=photos, model="sift", options=OPTIONS)
    with pytest.raises(WorkspaceMismatch, match="rootsift, not sift"):
        run(collection)


def test_two_runs_at_once_are_refused(matched: Collection, photos: Path) -> None:
    steps = matched.match(workers=1)
    next(steps)
    other = Collection(matched.workspace.root, images=photos, model="rootsift", options=OPTIONS)
    with pytest.raises(WorkspaceBusy):
        run(other)
    assert len(list(steps)) > 0


def test_a_workspace_can_be_opened_by_its_folder_alone(matched: Collection) -> None:
    opened = Collection.open(matched.workspace.root)
    assert opened.setup == matched.setup
    assert len(list(opened.results())) == 15
    with pytest.raises(MissingInput, match="not the workspace"):
        Collection.open(matched.folder)


def test_collections_can_share_features(matched: Collection, photos: Path, tmp_path: Path) -> None:
    store = matched.workspace.root / "features"
    other = Collection(
        tmp_path / "other", images=photos, model="rootsift", options=OPTIONS, store=store
    )
    run(other)
    assert other.counts.described == 0


def test_wrong_arguments(matched: Collection, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="nothing"):
        matched.result("0000.png", "nothing.png")
    with pytest.raises(InvalidParameter, match="all"):
        run(matched, "all")
    with pytest.raises(MissingInput):
        run(Collection(tmp_path / "x", images=tmp_path / "nothing"))


def test_a_folder_without_images_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no image")
    with pytest.raises(MissingInput, match="no images in"):
        run(Collection(tmp_path / "w", images=tmp_path / "empty", model="sift"))
    assert not (tmp_path / "w").exists()


def test_an_image_without_pairs(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (photos / "0000.png").rename(tmp_path / "one" / "0000.png")
    collection = Collection(tmp_path / "w", images=tmp_path / "one", model="sift")
    run(collection)
    assert list(collection.results()) == []
    assert collection.pairs().shape == (0, 6)


def test_temporary_files_of_killed_runs_are_removed(matched: Collection) -> None:
    left = matched.workspace.root / "matches" / ".x.npz.999999.partial"
    left.write_bytes(b"half")
    run(matched)
    assert not left.exists()


def test_the_ledger_survives_being_reopened(matched: Collection) -> None:
    ledger = Ledger(matched.workspace.ledger)
    assert [row.id for row in ledger.images()] == [1, 2, 3, 4, 5, 6]
    pairs = ledger.pairs()
    assert pairs.shape == (15, 6)
    assert (pairs[:, 3] > 0).all()
    assert np.array_equal(np.unique(pairs[:, :2]), np.arange(1, 7))
    ledger.close()


def _damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "delete":
        path.unlink()
    elif how == "truncate":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 4
        path.write_bytes(data)


def test_retrieval_without_a_shipped_codebook(matched: Collection, photos: Path) -> None:
    """Images of another scene are not chosen, and a second run makes nothing."""
    from matchserve.pattern import generate_pair
    from tests.conftest import encoded

    first, second, _ = generate_pair((480, 360), seed=7)
    (photos / "x1.png").write_bytes(encoded(first))
    (photos / "x2.png").write_bytes(encoded(second))
    run(matched, "retrieval:1")
    pairs = {(a, b) for a, b, _ in matched.results()}
    assert ("x1.png", "x2.png") in pairs
    assert all(a.startswith("x") == b.startswith("x") for a, b in pairs)
    assert (matched.workspace.root / "codebook.npz").is_file()
    run(matched, "retrieval:1")
    assert matched.counts.matched == 0


def test_other_pairs_than_those_of_a_stopped_run(photos: Path, tmp_path: Path) -> None:
    """A planned shard that loses pairs is planned anew, under another name."""
    wanted = tmp_path / "pairs.txt"
    wanted.write_text("0000.png 0001.png\n0002.png 0003.png\n", encoding="utf-8")

    def collection(name: str) -> Collection:
        return Collection(tmp_path / name, images=photos, model="rootsift", options=OPTIONS)

    stopped = collection("stopped")
    for step in stopped.match("exhaustive", workers=1):
        if step.stage == "match":
            break
    assert len(stopped.pairs()) == 15
    for one in (stopped, collection("other")):
        list(one.match(f"list:{wanted}", workers=1))
        assert [names[:2] for names in one.results()] == [
            ("0000.png", "0001.png"),
            ("0002.png", "0003.png"),
        ]
    files = [sorted((tmp_path / n).glob("matches/*.npz")) for n in ("stopped", "other")]
    assert [f.name for f in files[0]] == [f.name for f in files[1]]
    list(stopped.match("exhaustive", workers=1))
    assert len(list(stopped.results())) == 15
