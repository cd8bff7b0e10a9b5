from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from matchserve.collections.pairs import choose, parse, reason_names, resolve
from matchserve.collections.pairs.images import PairImage, PairRows, as_rows
from matchserve.errors import InvalidParameter, MissingInput


def images(count: int, folder: str = "") -> list[PairImage]:
    return [PairImage(n, f"{folder}IMG_{n}.jpg") for n in range(count)]


def nearest_numbers(ids: Sequence[int], count: int) -> PairRows:
    """A retriever that finds the images with the next numbers most similar."""
    return np.array([(i, i + step) for i in ids for step in range(1, count + 1)], np.int64)


def pairs_of(
    found: list[PairImage], specification: str, retriever: object = nearest_numbers
) -> set[tuple[int, int]]:
    parts = resolve(parse(specification), found)
    rows, _ = choose(found, parts, retriever)  # type: ignore[arg-type]
    assert (rows[:, 0] < rows[:, 1]).all()
    return {(a, b) for a, b in rows.tolist()}


def test_exhaustive() -> None:
    assert len(pairs_of(images(7), "exhaustive")) == 21
    assert pairs_of(images(1), "exhaustive") == set()


@pytest.mark.parametrize(
    "text",
    ["exhaustive", "sequential:6", "retrieval:6", "spatial:6", "sequential:4+retrieval:4"],
)
def test_more_pairs_than_memory_holds_are_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused before they are in memory: 100,000 images may be uploaded."""
    monkeypatch.setattr("matchserve.collections.pairs.images.MAX_PAIRS", 100)
    with pytest.raises(InvalidParameter, match=r"pairs of images, at most 100 are allowed"):
        pairs_of(images(20), text)
    assert pairs_of(images(10), text)


def test_sequential_follows_the_numbers_in_the_names() -> None:
    shuffled = [PairImage(id_, f"IMG_{n}.jpg") for id_, n in enumerate([10, 9, 11, 2])]
    assert pairs_of(shuffled, "sequential:1") == {(1, 3), (0, 1), (0, 2)}
    assert len(pairs_of(images(12), "sequential:3")) == 9 * 3 + 2 + 1


def test_sequential_stays_in_its_folder() -> None:
    found = [PairImage(0, "a/1.jpg"), PairImage(1, "a/2.jpg"), PairImage(2, "b/1.jpg")]
    assert pairs_of(found, "sequential:2") == {(0, 1)}


def test_loops_join_what_is_far_apart_in_the_sequence() -> None:
    def same_place(ids: Sequence[int], count: int) -> PairRows:
        assert list(ids) == [0, 10, 20, 30]
        del count
        return as_rows([(0, 1), (0, 39), (10, 35)])

    found = pairs_of(images(40), "sequential:2,loops", same_place)
    assert found == pairs_of(images(40), "sequential:2") | {(0, 39), (10, 35)}


def test_retrieval_unites_both_directions() -> None:
    def star(ids: Sequence[int], count: int) -> PairRows:
        assert count == 2
        return np.array([(i, 0) for i in ids], np.int64)

    assert pairs_of(images(4), "retrieval:2", star) == {(0, 1), (0, 2), (0, 3)}


def test_spatial_takes_the_nearest_within_the_distance() -> None:
    # One image every 11.1 m to the north, and one a kilometre away.
    degrees = [0.0001 * n for n in range(5)] + [0.01]
    found = [PairImage(n, f"{n}.jpg", (47 + d, 8.0, None)) for n, d in enumerate(degrees)]
    assert pairs_of(found, "spatial:2,15m") == {(0, 1), (1, 2), (2, 3), (3, 4)}
    assert (0, 2) in pairs_of(found, "spatial:2,100m")
    assert not any(5 in pair for pair in pairs_of(found, "spatial:20,150m"))
    assert any(5 in pair for pair in pairs_of(found, "spatial:1,5000m"))


def test_spatial_equals_brute_force() -> None:
    rng = np.random.default_rng(0)
    places = rng.uniform(0, 300, (60, 2))
    metres = 111_320.0
    found = [PairImage(n, f"{n}", (y / metres, x / metres, 5.0)) for n, (x, y) in enumerate(places)]
    expected = set()
    for row in range(60):
        distance = np.linalg.norm(places - places[row], axis=1)
        near = [n for n in np.argsort(distance)[1:6] if distance[n] <= 50]
        expected |= {(min(row, n), max(row, n)) for n in near}
    assert pairs_of(found, "spatial:5,50m") == expected


def test_spatial_across_the_date_line() -> None:
    found = [PairImage(0, "a", (0.0, 179.9999, None)), PairImage(1, "b", (0.0, -179.9999, None))]
    assert pairs_of(found, "spatial:1,100m") == {(0, 1)}


def test_images_without_a_position_are_paired_by_appearance() -> None:
    found = [PairImage(0, "a", (47.0, 8.0, None)), PairImage(1, "b", (47.0, 8.0, None))]
    lost = [PairImage(2, "c"), PairImage(3, "d")]
    calls = []

    def retriever(ids: Sequence[int], count: int) -> PairRows:
        calls.append((list(ids), count))
        return as_rows([(2, 0)])

    assert pairs_of(found + lost, "spatial:7,10m", retriever) == {(0, 1), (0, 2)}
    assert calls == [([2, 3], 7)]


def test_a_list_may_have_names_with_spaces_and_refused_images(tmp_path: Path) -> None:
    found = [PairImage(0, "a b.jpg"), PairImage(1, "c.jpg"), PairImage(2, "bad.jpg", None, False)]
    file = tmp_path / "pairs.txt"
    file.write_text("# ours\n\na b.jpg c.jpg\nc.jpg\ta b.jpg\nc.jpg bad.jpg\n")
    assert pairs_of(found, f"list:{file}") == {(0, 1)}
    file.write_text("a b.jpg c.jpg\nc.jpg d.jpg\n")
    with pytest.raises(InvalidParameter, match=r"line 2.*d\.jpg"):
        pairs_of(found, f"list:{file}")
    with pytest.raises(MissingInput):
        pairs_of(found, "list:nothing.txt")


def test_unions_remember_every_reason() -> None:
    parts = parse("sequential:1+exhaustive")
    rows, reasons = choose(images(3), parts, nearest_numbers)
    masks = zip(rows.tolist(), reasons.tolist(), strict=True)
    named = {tuple(row): reason_names(mask) for row, mask in masks}
    assert named == {
        (0, 1): ["exhaustive", "sequential"],
        (0, 2): ["exhaustive"],
        (1, 2): ["exhaustive", "sequential"],
    }


def test_auto_depends_on_the_size_and_the_positions() -> None:
    def chosen(count: int, located: int) -> str:
        found = [
            PairImage(n, f"{n}", (47.0, 8.0, None) if n < located else None) for n in range(count)
        ]
        return resolve(parse("auto"), found)[0].name

    assert chosen(200, 200) == "exhaustive"
    assert chosen(201, 150) == "spatial"
    assert chosen(201, 50) == "retrieval"


@pytest.mark.parametrize(
    "text",
    ["", "all", "sequential:0", "sequential:x", "sequential:3,rings", "retrieval:-1",
     "spatial:3,10", "spatial:3,0m", "exhaustive:3", "sequential:3+"],
)  # fmt: skip
def test_wrong_specifications(text: str) -> None:
    with pytest.raises(InvalidParameter):
        pairs_of(images(4), text)
