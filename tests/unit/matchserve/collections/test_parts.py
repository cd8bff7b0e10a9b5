from __future__ import annotations

from pathlib import Path

import pytest

from matchserve.collections.collection import Collection
from matchserve.collections.parts import Part, parse_part
from matchserve.errors import InvalidParameter
from tests.unit.matchserve.collections.conftest import OPTIONS
from tests.unit.matchserve.collections.test_collection import digests


def test_parts_share_all_items() -> None:
    items = list(range(10))
    shares = [Part(n, 3).own_first(items) for n in range(3)]
    assert [share[:3] for share in shares] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert all(sorted(share) == items for share in shares)
    for shard in ("00ff", "a1", "1234abcd"):
        assert sum(Part(n, 5).owns(shard) for n in range(5)) == 1


@pytest.mark.parametrize("text", ["", "3", "3/3", "-1/2", "a/b", "1/0", "1/2/3"])
def test_wrong_parts(text: str) -> None:
    with pytest.raises(InvalidParameter):
        parse_part(text)


def test_parts_make_the_files_of_one_run(photos: Path, matched_once: Path, tmp_path: Path) -> None:
    """Three parts at once, one of which is stopped and started again; then a run that merges."""

    def collection() -> Collection:
        return Collection(tmp_path / "w", images=photos, model="rootsift", options=OPTIONS)

    runs = [(collection(), Part(n, 3)) for n in range(3)]
    steps = [c.match(workers=1, part=part) for c, part in runs]
    # In turn, so that all parts are at work at the same time.
    next(steps[1])
    next(steps[1])
    steps[1].close()
    steps[1] = runs[1][0].match(workers=1, part=runs[1][1])
    waiting = list(steps)
    while waiting:
        waiting = [step for step in waiting if next(step, None) is not None]
    described = sum(c.counts.described for c, _ in runs)
    assert described <= 6 + 2  # at most the image under way is described twice
    assert sum(c.counts.matched for c, _ in runs) == 15
    assert digests(tmp_path / "w") == digests(matched_once)
    last = collection()
    list(last.match(workers=1))
    assert (last.counts.described, last.counts.matched) == (0, 0)
    assert len(list(last.results())) == 15
